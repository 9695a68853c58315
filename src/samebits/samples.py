"""Samples from whatever a user has: arrays, tensors, dicts, DataLoaders, archives, folders."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from samebits import data, ledger, progress
from samebits.contract import UNKNOWN, Contract, of_data
from samebits.data.archive import WHOLE_KEYS
from samebits.data.earlier import Earlier
from samebits.data.frames import is_frame
from samebits.data.load import given_data
from samebits.data.table import features_of_frames, values_of
from samebits.errors import InputError
from samebits.files import read_archive, read_array
from samebits.ir import Graph
from samebits.recipes.reading import PLAIN, Reading

Array = np.ndarray[Any, Any]
IMAGE_AXES = 3  # channels, height and width
NAMELESS = ""  # the array of an .npy file
COLOUR_OF = {1: "grey", 3: "rgb"}  # by channels

KINDS = (
    "an array, a tensor, a dict of them by the names of the inputs, a DataLoader or another "
    "iterable of batches or samples, a pandas.DataFrame, an .npz or .npy file, a folder of images "
    "or recordings, or data for training (digits, a folder, a table, a samebits.data.Dataset)"
)


@ledger.load()
def gather(
    given: Any,
    graph: Graph,
    what: str = "samples",
    options: Reading = PLAIN,
    rate: int | None = None,
    earlier: Earlier | None = None,
    whole: bool = False,
) -> dict[str, Array]:
    """Samples of the inputs of a graph as whole arrays, by name: [n, ...] each.

    given: one of KINDS. Of an iterable, every item is a batch or a single sample: an array, a dict,
           or a tuple whose first items belong to the inputs (labels after them are left out)
    what:  what the samples are for, in messages
    options: of reading a file or folder
    rate:  samples per second that data for the network has, where it is one of recordings
    earlier: how the run of the network read its data
    whole: of data for training all samples are taken, in the order of its source (`Dataset.whole`);
           else those for training

    An archive must hold arrays under the inputs' names (any name, if there is one of each). Data
    for training, and frames of pandas, become what the network sees; arrays are that already, and
    where `earlier` shows that they are not, they are refused unless `options.prepared`. Raises
    InputError for anything else, with what was expected, for an iterable without items, and for
    options that do not apply.
    """
    if isinstance(given, str | Path):
        return _stored(given, graph, what, options, rate, earlier, whole)
    options.apart_from(what, "samples in memory", data.options_of(given))
    if isinstance(given, data.Dataset):
        if rate is not None:
            given.check_rate(rate)
        given = given_data(given, earlier=earlier, whole=whole)
        chosen = given.test_images if whole else given.train_images
        if not len(chosen):
            raise _empty(what)
        return fitted(given.source, given.values(chosen), graph, what)
    if is_frame(given):
        return fitted(what, _of_frame(given, what, options, earlier), graph, what)
    return _checked(_of_arrays(given, graph, what), graph, what, options, earlier)


def meaning_of(graph: Graph, given: Any, options: Reading) -> Contract:
    """The contract of a network's input by data that it is given, where that says how it is fed:
    columns and scales of a `Dataset`, values of pixels. Nothing is said of outputs: data for
    another purpose may have their classes in another order."""
    if len(graph.own_inputs) != 1 or not graph.own_outputs:
        return UNKNOWN
    names = graph.own_inputs[0], graph.own_outputs[0]
    if isinstance(given, data.Dataset):
        pixels = (given.options.mean, given.options.std) if given.pixels else None
        return of_data(names, given.preparation, pixels=pixels)
    images = len(graph.values[names[0]].shape) == 1 + IMAGE_AXES
    if images and isinstance(given, str | Path) and "colour" in data.options_of(given):
        return of_data(names, None, pixels=(options.mean, options.std))
    return UNKNOWN


def _of_arrays(given: Any, graph: Graph, what: str) -> dict[str, Array]:
    """Arrays, tensors, and iterables of them, as whole arrays."""
    if isinstance(given, Mapping):
        return {_name(name, graph, what): _array(item, what) for name, item in given.items()}
    if _is_array(given):
        return {_only(graph, what): _array(given, what)}
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise InputError(f"{what}: expected {KINDS}, found {type(given).__name__}")
    total = len(given) if isinstance(given, Sized) else None
    parts = [_batch(item, graph, what) for item in progress.track(given, f"reading {what}", total)]
    if not parts:
        raise _empty(what)
    first = parts[0]
    for index, part in enumerate(parts):
        if part.keys() != first.keys():
            raise InputError(
                f"{what}: expected the arrays {', '.join(first)} in every item, as in the first, "
                f"found {', '.join(part)} in item {index}"
            )
        for name, array in part.items():
            wanted, found = list(first[name].shape[1:]), list(array.shape[1:])
            if wanted != found:
                raise InputError(
                    f"{what}: expected samples of one shape, {wanted} for {name!r} as in the first "
                    f"item, found {found} in item {index}"
                )
    return {name: np.concatenate([part[name] for part in parts]) for name in first}


def _checked(
    arrays: dict[str, Array],
    graph: Graph,
    what: str,
    options: Reading,
    earlier: Earlier | None,
) -> dict[str, Array]:
    """Arrays as they are. Raises InputError for values that the network was not trained on."""
    if earlier is not None and not options.prepared:
        for name in graph.own_inputs:
            if name in arrays:
                earlier.check_array(arrays[name], what)
    return arrays


def _of_frame(given: Any, what: str, options: Reading, earlier: Earlier | None) -> Any:
    """The values of the features of a frame of pandas, in the columns and scales of a run."""
    if earlier is None or earlier.preparation is None:
        raise InputError(
            f"{what}: expected a network that knows the columns of its table, as a training folder "
            "has it, for a pandas.DataFrame, found another; give that folder, or an array of what "
            "the network takes"
        )
    return values_of(features_of_frames(what, [(what, given)], options, earlier))


def _empty(what: str) -> InputError:
    return InputError(f"{what}: expected at least one sample, found none")


def is_module(source: Any) -> bool:
    """Whether a model is a torch.nn.Module, which needs an example of its inputs."""
    return callable(getattr(source, "forward", None))


def kept(given: Any) -> Any:
    """The same samples, which may be read more than once."""
    return list(given) if isinstance(given, Iterator) else given


@ledger.load()
def in_memory(given: Any, options: Reading = PLAIN) -> Any:
    """The samples of a file or folder before there is a graph for them: arrays by name, or one
    alone, read as `gather` reads them; others as they are."""
    if not isinstance(given, str | Path):
        return given
    arrays = archived(given, options)
    if arrays is None:
        return data.load_samples(str(given), options=options)
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def example_of(module: Any, given: Any, what: str = "calibration") -> Any:
    """Example inputs for a torch.nn.Module from samples in memory; None for any other model.

    The first sample, with a batch axis of 1: of a dict the arrays in order of the parameters of
    `forward`. Raises InputError as `gather`.
    """
    if not is_module(module):
        return None
    if isinstance(given, data.Dataset):
        return (given.values(given.train_images[:1]),)
    import torch

    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # of a function that is not written in Python
        raise InputError(
            f"{type(module).__name__}: expected a forward with parameters that Python knows, found "
            "none; give example=tensor (a tuple of several)"
        ) from None
    required = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    first = given
    if not isinstance(given, Mapping) and not _is_array(given):
        if isinstance(given, bytes) or not isinstance(given, Iterable):
            raise InputError(f"{what}: expected {KINDS}, found {type(given).__name__}")
        first = next(iter(given), None)
    if first is None:
        raise _empty(what)
    if isinstance(first, Mapping):
        if not set(required) <= set(first) <= set(parameters):
            raise InputError(
                f"{what}: expected the names {', '.join(required)} (the parameters of forward), "
                f"found {', '.join(map(str, first))}"
            )
        parts = [first[name] for name in parameters if name in first]
    elif isinstance(first, Sequence):
        parts = list(first[: len(required)])
    else:
        parts = [first]
    return tuple(torch.from_numpy(_array(part, what)[:1].copy()) for part in parts)


def archived(
    given: str | Path, options: Reading, names: Collection[str] = WHOLE_KEYS
) -> dict[str, Array] | None:
    """The arrays of an archive of inputs, or of a file of one array; None for what is data for
    training: x and y are, unless inputs have these `names`."""
    path = Path(given)
    if path.suffix not in (".npz", ".npy"):
        return None
    arrays = read_archive(path) if path.suffix == ".npz" else {NAMELESS: read_array(path)}
    labelled = arrays.keys() == set(WHOLE_KEYS) and not arrays.keys() <= set(names)
    if {"x_train", "y_train"} <= arrays.keys() or labelled:
        return None
    options.apart_from(str(given), "an archive of inputs", ("prepared",))
    return arrays


def _stored(
    given: str | Path,
    graph: Graph,
    what: str,
    options: Reading,
    rate: int | None,
    earlier: Earlier | None,
    whole: bool,
) -> dict[str, Array]:
    """The arrays of an archive, or the samples of data."""
    arrays = archived(given, options, graph.inputs)
    if arrays is not None:
        if len(arrays) == 1 and (len(graph.own_inputs) == 1 or NAMELESS in arrays):
            arrays = {_only(graph, what): next(iter(arrays.values()))}
        return _checked(arrays, graph, str(given), options, earlier)
    shape = graph.values[_only(graph, what)].shape[1:]
    found = data.load_samples(
        str(given), input_shape=shape, options=options, rate=rate, earlier=earlier, whole=whole
    )
    return fitted(str(given), found, graph, what, data.options_of(given))


def fitted(
    source: str, values: Any, graph: Graph, what: str, takes: Sequence[str] = ()
) -> dict[str, Array]:
    """A tensor of samples for the only input. Raises InputError for another shape, with those
    options of reading that the source takes and that would give the right one."""
    name = _only(graph, what)
    shape, found = graph.values[name].shape[1:], tuple(values.shape[1:])
    if found == shape:
        return {name: values.numpy()}
    advice = []
    if len(shape) == len(found) == IMAGE_AXES:
        if "resize" in takes and found[1:] != shape[1:]:
            advice.append(f"--resize {shape[1]}x{shape[2]}")
        if "colour" in takes and found[0] != shape[0] and shape[0] in COLOUR_OF:
            advice.append(f"--colour {COLOUR_OF[shape[0]]}")
    raise InputError(
        f"{source}: expected samples of shape {list(shape)} for the input {name!r}, found "
        f"{list(found)}" + (f"; give {' and '.join(advice)}" if advice else "")
    )


def _batch(item: Any, graph: Graph, what: str) -> dict[str, Array]:
    """One item of an iterable, as a batch."""
    names = graph.own_inputs
    if isinstance(item, Mapping):
        named = {_name(name, graph, what): part for name, part in item.items()}
    elif isinstance(item, Sequence) and not isinstance(item, str | bytes):
        if len(item) < len(names):
            raise InputError(
                f"{what}: expected an item for each input ({', '.join(names)}), found {len(item)}"
            )
        named = dict(zip(names, item, strict=False))
    else:
        named = {_only(graph, what): item}
    batch = {}
    for name, part in named.items():
        array = _array(part, what)
        single = array.ndim == len(graph.values[name].shape) - 1
        batch[name] = array[None] if single else array
    return batch


def _is_array(given: Any) -> bool:
    return isinstance(given, np.ndarray | np.generic) or _is_tensor(given)


def _is_tensor(given: Any) -> bool:
    return hasattr(given, "detach") and hasattr(given, "cpu")


def _array(given: Any, what: str) -> Array:
    """An array or tensor as an array of samples. Raises InputError for anything else."""
    if not _is_array(given):
        raise InputError(f"{what}: expected arrays or tensors, found {type(given).__name__}")
    try:
        array = np.asarray(given.detach().cpu().numpy() if _is_tensor(given) else given)
    except (TypeError, RuntimeError):
        raise InputError(
            f"{what}: expected dense tensors of a type that numpy has, found {given.dtype} "
            f"({given.layout}); convert them with .float()"
        ) from None
    if array.ndim == 0:
        raise InputError(f"{what}: expected samples along the first axis, found a single number")
    if len(array) == 0:
        raise _empty(what)
    return array


def _only(graph: Graph, what: str) -> str:
    """The name of the graph's only input."""
    if len(graph.own_inputs) != 1:
        raise InputError(
            f"{what}: expected arrays by name for the inputs {', '.join(graph.own_inputs)}, found "
            "them without names; give a dict or an .npz file with these names"
        )
    return graph.own_inputs[0]


def _name(name: object, graph: Graph, what: str) -> str:
    if not isinstance(name, str) or name not in graph.inputs:
        raise InputError(
            f"{what}: expected the names {', '.join(graph.inputs)} (the model's inputs), found "
            f"{name!r}"
        )
    return name
