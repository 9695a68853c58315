"""Options that several commands share, each with one name, one range and one text of help."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.errors import InputError
from samebits.ledger import memory_limit

SIZE_DIGITS = 9  # of one size of a shape: more cannot be meant
SEEDS = 2**32 - 1


def whole(
    help: str, low: int | None = None, high: int | None = None, names: tuple[str, ...] = ()
) -> Any:
    """An option that takes a whole number from `low` to `high`."""
    span = "" if low is None else f" from {low}" + ("" if high is None else f" to {high}")

    def parse(text: str | int) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if (
            number is None
            or not (low is None or low <= number)
            or not (high is None or number <= high)
        ):
            raise typer.BadParameter(f"expected a whole number{span}, found {text!r}")
        return number

    return typer.Option(*names, parser=parse, metavar="N", help=help)


def real(help: str) -> Any:
    """An option that takes a number."""

    def parse(text: str | float) -> float:
        try:
            return float(text)
        except ValueError:
            raise typer.BadParameter(f"expected a number, found {text!r}") from None

    return typer.Option(parser=parse, metavar="NUMBER", help=help)


def file_ending(suffix: str, help: str, *others: str) -> Any:
    """An option that takes the name of a file to write, refused before any work is done. others:
    endings that it may have too."""
    endings = (suffix, *others)

    def parse(text: str | Path) -> Path:
        if Path(text).suffix.lower() not in endings:
            words = " or ".join(each or "nothing" for each in endings)
            raise typer.BadParameter(f"expected a name ending in {words}, found {str(text)!r}")
        return _place(text)

    return typer.Option(parser=parse, metavar="FILE", help=help)


def written_file(help: str) -> Any:
    """An option that takes the name of a file to write, of any ending; refused as `file_ending`."""
    return typer.Option(parser=_place, metavar="FILE", help=help)


def _place(text: str | Path) -> Path:
    """Where a file can be written: in a folder, which may have yet to be made."""
    path = Path(text)
    if path.is_dir():
        raise typer.BadParameter(f"expected a file to write, found the folder {path}")
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise typer.BadParameter(f"{path}: expected a folder {above}, found a file of that name")
    return path


def sizes_of(text: str | None, option: str) -> tuple[int, ...] | None:
    """The sizes of a text such as 3,32,32. Raises InputError for another text."""
    if text is None:
        return None
    sizes = text.split(",")
    if not all(s.isascii() and s.isdigit() and len(s) <= SIZE_DIGITS and int(s) for s in sizes):
        raise InputError(f"{option}: expected sizes such as 3,32,32, found {text!r}")
    return tuple(int(size) for size in sizes)


def paths_of(text: str) -> list[str]:
    """The paths of modules of a text such as body.3,head."""
    return [path for path in text.split(",") if path]


def shapes_of(texts: list[str] | None) -> dict[str, tuple[int, ...]] | None:
    """The shapes of inputs by name, of texts such as x=1,3,96,96; None where none is given.

    Raises InputError for another text and for an input that is named twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts or ():
        name, _, sizes = text.rpartition("=")
        if not name:
            raise InputError(
                f"--shape: expected NAME=SIZES such as x=1,3,96,96, found {text!r}; samebits "
                "inspect MODEL lists the inputs"
            )
        if name in shapes:
            raise InputError(f"--shape: expected one shape for the input {name!r}, found two")
        shapes[name] = sizes_of(sizes, f"--shape {name}") or ()
    return shapes or None


def settings_of(texts: list[str] | None) -> dict[str, str] | None:
    """The numbers of inputs by name, of texts such as sr=16000; None where none is given.

    Raises InputError for another text and for an input that is named twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, number = text.rpartition("=")
        if not name or not number:
            raise InputError(f"--set: expected NAME=VALUE such as sr=16000, found {text!r}")
        if name in found:
            raise InputError(f"--set: expected one number for the input {name!r}, found two")
        found[name] = number
    return found or None


def tensors_of(text: str | None) -> list[str] | None:
    """The names of a text such as A,B; None where none is given."""
    return None if text is None else [name.strip() for name in text.split(",")]


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")]
Threads = Annotated[int | None, whole("CPU threads.", 1)]
Arch = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Needed for a training run of a callable of your own: its name."
    ),
]
TrainOnly = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="With --train: the modules or parameters that a step trains, separated by commas, "
        "such as head or *.bias [default: all].",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=SIZES",
        help="Shape of an input whose dimensions the model leaves open, such as x=1,3,96,96; once "
        "for each.",
    ),
]
Floor = Annotated[
    str | None,
    typer.Option(
        metavar="DB",
        help="What every output has to keep of the float network, in dB on every fourth sample, or "
        "nothing is written; none: whatever it keeps.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="An input of an ONNX file becomes a constant, such as sr=16000; once for each.",
    ),
]
StartAt = Annotated[
    str | None,
    typer.Option(
        metavar="TENSORS",
        help="Cut off what is before these tensors, with commas between them: they become the "
        "inputs.",
    ),
]
EndAt = Annotated[
    str | None,
    typer.Option(
        metavar="TENSORS",
        help="Cut off what is behind these tensors: they become the outputs.",
    ),
]
Meaning = Annotated[
    str | None,
    typer.Option(
        metavar="MEANING",
        help="Of a quantized .tflite file: exact, every result rounded once; tflite, the bits of "
        "TensorFlow Lite Micro; or tflite:VERSION [default: exact].",
    ),
]
EXCERPT: dict[str, tuple[Any, Any]] = {  # annotations and defaults
    "shapes": (Shapes, None),
    "set": (Settings, None),
    "start_at": (StartAt, None),
    "end_at": (EndAt, None),
    "meaning": (Meaning, None),
}
PARSERS: dict[str, Callable[[Any], Any]] = {
    "shapes": shapes_of,
    "set": settings_of,
    "start_at": tensors_of,
    "end_at": tensors_of,
}
Samples = Annotated[
    str,
    typer.Option(
        metavar="SAMPLES", help="An .npz archive, digits, a folder or table of data, or random:N."
    ),
]
SampleSeed = Annotated[int, whole("Seed of random:N.", 0, SEEDS)]
Page = Annotated[
    Path | None,
    file_ending(".html", "Write the page of what was made, as samebits report does.", ".htm"),
]
Sign = Annotated[
    Path | None,
    typer.Option(
        metavar="KEY",
        help="Sign report.json by ssh-keygen: a private key of yours, or the public one of a key "
        "in ssh-agent.",
    ),
]
GivenContract = Annotated[
    Path | None,
    typer.Option(
        "--contract",
        metavar="FILE",
        help="JSON of the model's own name and version, its classes and units: they stand in its "
        "files and its C.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        metavar="DATA",
        help="digits, a folder of images (with masks/) or WAV audio, .csv, .parquet, .npz, .txt, a "
        "folder saved by Hugging Face, or module:callable or file.py:callable.",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS",
        help="Of a table: its labels, which are no inputs, with commas between them [default: the "
        "last column].",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="TASK",
        help="classification, regression, multilabel or segmentation [default: what the labels "
        "say].",
    ),
]
Resize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Bring images to N pixels each way, or HEIGHTxWIDTH: scaled to cover it, the middle "
        "kept.",
    ),
]
Resample = Annotated[
    bool, typer.Option("--resample", help="Bring recordings of any rate to 16 kHz.")
]
Colour = Annotated[str | None, typer.Option(metavar="NAME", help="Bring images to grey or rgb.")]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Values of pixels are (pixel / 255 - mean) / std: a number, or one for each channel "
        "such as 0.485,0.456,0.406 [default: 0.5].",
    ),
]
Std = Annotated[str | None, typer.Option(metavar="NUMBERS", help="See --mean [default: 0.5].")]
Prepared = Annotated[
    bool,
    typer.Option(
        "--prepared",
        help="Arrays of an archive are what the network was trained on, standardised and so on: "
        "take them as they are.",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="Memory for what is read, such as 8GiB [default: 4GiB or half of what is free; at "
        "most 512 times the bytes of the files, or 512MiB].",
    ),
]
FILE_READING: dict[str, tuple[Any, Any]] = {  # annotations and defaults
    "target": (Target, None),
    "resize": (Resize, None),
    "resample": (Resample, False),
    "colour": (Colour, None),
    "mean": (Mean, None),
    "std": (Std, None),
}
SAMPLE_READING = FILE_READING | {"prepared": (Prepared, False)}
LABELLED_READING = FILE_READING | {"task": (Task, None)}
Command = Callable[..., None]


def reads(options: Mapping[str, tuple[Any, Any]]) -> Callable[[Command], Command]:
    """A command that reads files: its keywords `**` stand for these options, before its `quiet`;
    and all that it reads is within --memory-limit."""
    options = {**options, "memory_limit": (MemoryLimit, None)}

    def made(command: Command) -> Command:
        """The command with a signature that has them, which is what typer reads."""
        own = inspect.signature(command, eval_str=True)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        place = [p.name for p in parameters].index("quiet")
        parameters[place:place] = [
            inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind
            )
            for name, (kind, default) in options.items()
        ]

        @functools.wraps(command)
        def called(*operands: Any, **given: Any) -> None:
            parsed = {name: PARSERS[name](given[name]) for name in PARSERS.keys() & given.keys()}
            with memory_limit(given.pop("memory_limit", None)):
                command(*operands, **given | parsed)

        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return called

    return made


OwnLoss = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A loss of your own, of outputs and labels: module:callable or file.py:callable.",
    ),
]
KeepFloat = Annotated[
    str,
    typer.Option(metavar="LIST", help="Paths of modules without parameters that stay in float32."),
]
Shards = Annotated[int | None, whole("Shards per batch [default: one per 32 samples].", 1)]
