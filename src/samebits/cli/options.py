"""Options that several commands share, each with one name, one range and one text of help."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from samebits.errors import InputError
from samebits.ledger import memory_limit
from samebits.recipes import Reading, Recipe, option_of, read_recipes
from samebits.recipes.record import expected, flag_of, kind_of, taken
from samebits.recipes.training import ARCHITECTURES, SEEDS

SIZE_DIGITS = 9  # of one size of a shape: more cannot be meant


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
_SAMPLES = "An .npz archive, digits, a folder or table of data, or random:N."
Samples = Annotated[str, typer.Option("--data", metavar="SAMPLES", help=_SAMPLES)]
GivenSamples = Annotated[
    str | None,
    typer.Option("--data", metavar="SAMPLES", help=_SAMPLES, show_default="random:1"),
]
SampleSeed = Annotated[int | None, whole("Seed of random:N [default: 0].", 0, SEEDS)]
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
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="Memory for what is read, such as 8GiB [default: 4GiB or half of what is free; at "
        "most 512 times the bytes of the files, or 512MiB].",
    ),
]
Architecture = Annotated[
    str,
    typer.Option(
        "--arch",
        metavar="NAME",
        help=f"{', '.join(ARCHITECTURES)} (of a text), or module:callable or file.py:callable.",
        autocompletion=lambda incomplete: _begun(ARCHITECTURES, incomplete),
    ),
]
RecipeFile = Annotated[
    Path | None,
    typer.Option(
        "--recipe",
        metavar="FILE",
        help="Options from a .toml or .json file, a table for each recipe, such as [training]; "
        "what is given beside it counts more.",
    ),
]
Command = Callable[..., None]


CONTEXT = "context"  # by which typer says what was given


class Only(tuple[str, ...]):
    """The options of a recipe that a command has, where it does not have all of them."""


LabelledReading = Annotated[Reading, Only(name for name in Reading.options() if name != "prepared")]
SampleReading = Annotated[Reading, Only(name for name in Reading.options() if name != "task")]


def flag(place: Field[Any]) -> Any:
    """An option of a recipe as one of a command."""
    said, kind = option_of(place), kind_of(place)
    names = said.names or (lambda: said.choices)
    complete = {"autocompletion": lambda incomplete: _begun(names(), incomplete)}
    common: dict[str, Any] = {"help": said.help, **(complete if said.choices or said.names else {})}
    if kind == "bool":
        return typer.Option(flag_of(place.name), help=said.help)
    if said.many:
        return typer.Option(flag_of(place.name), metavar=said.metavar, **common)
    metavar = said.metavar or {"int": "N", "float": "NUMBER"}[kind]
    if said.take is None and kind in ("int", "float", "str"):
        return typer.Option(
            flag_of(place.name), parser=functools.partial(_parsed, place), metavar=metavar, **common
        )
    return typer.Option(flag_of(place.name), metavar=metavar, **common)


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _parsed(place: Field[Any], text: Any) -> Any:
    """The value of an option of numbers or texts. Raises BadParameter."""
    kind = kind_of(place)
    try:
        value = {"int": int, "float": float, "str": str}[kind](text)
        return taken(place, value)
    except (ValueError, InputError):
        raise typer.BadParameter(f"expected {expected(place)}, found {text!r}") from None


def _annotation(place: Field[Any]) -> tuple[Any, Any]:
    """The type of an option for typer, and its default."""
    said, kind = option_of(place), kind_of(place)
    default = None if place.default == () else place.default
    plain: Any = {"int": int, "float": float, "bool": bool}.get(kind, str)
    if said.many:
        plain = list[str]
    elif said.take is not None:
        plain = str
    return (plain if default is not None else plain | None), default


def recipes_of(command: Command) -> dict[str, tuple[type[Recipe], tuple[str, ...]]]:
    """The recipes that a command takes, by its parameters' names, and their options."""
    found = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind, chosen = parameter.annotation, None
        if get_origin(kind) is Annotated:
            kind, chosen = get_args(kind)[0], get_args(kind)[1]
        if isinstance(kind, type) and issubclass(kind, Recipe):
            found[name] = kind, tuple(chosen if isinstance(chosen, Only) else kind.options())
    return found


def reads(options: Mapping[str, tuple[Any, Any]]) -> Callable[[Command], Command]:
    """A command that reads files within --memory-limit: its keywords `**` stand for these options,
    before its `quiet`, and each parameter that is a recipe for all options of that."""
    options = {**options, "memory_limit": (MemoryLimit, None)}

    def made(command: Command) -> Command:
        """The command with a signature that has them, which is what typer reads."""
        own, recipes = inspect.signature(command, eval_str=True), recipes_of(command)
        more = options | ({"recipe": (RecipeFile, None)} if recipes else {})
        parameters = []
        for parameter in own.parameters.values():
            if parameter.name in recipes:
                kind, names = recipes[parameter.name]
                for name in names:
                    place = kind.options()[name]
                    annotation, default = _annotation(place)
                    parameters.append(_parameter(name, Annotated[annotation, flag(place)], default))
            elif parameter.kind is not parameter.VAR_KEYWORD:
                parameters.append(parameter)
        before = [p.name for p in parameters].index("quiet")
        parameters[before:before] = [
            _parameter(name, kind, default) for name, (kind, default) in more.items()
        ]

        @functools.wraps(command)
        def called(*operands: Any, **given: Any) -> None:
            parsed = {name: PARSERS[name](given[name]) for name in PARSERS.keys() & given.keys()}
            with memory_limit(given.pop("memory_limit", None)):
                filed = _filed(given.pop("recipe", None), recipes)
                context = given.pop(CONTEXT, None)
                for name, (kind, options) in recipes.items():
                    values = {each: given.pop(each) for each in options}
                    values = {each: v for each, v in values.items() if _is_given(context, each)}
                    base = filed.get(kind)
                    parsed[name] = base.but(**values) if base else kind(**values)
                command(*operands, **given | parsed)

        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]  # in any order
        if recipes:
            context = inspect.Parameter(CONTEXT, inspect.Parameter.KEYWORD_ONLY)
            parameters.append(context.replace(annotation=typer.Context))
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        called.recipes = recipes  # type: ignore[attr-defined]
        return called

    return made


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
    )


def _filed(
    path: Path | None, recipes: Mapping[str, tuple[type[Recipe], tuple[str, ...]]]
) -> dict[type[Recipe], Recipe]:
    """The recipes of a file. Raises InputError for those that the command does not take."""
    found = {} if path is None else {type(each): each for each in read_recipes(path).values()}
    known = dict(recipes.values())
    for kind, recipe in found.items():
        wrong = [name for name in recipe.chosen() if name not in known.get(kind, ())]
        if kind not in known or wrong:
            raise InputError(
                f"{path}: expected tables "
                f"{', '.join(kind.__name__.lower() for kind in known)} of this command's options, "
                f"found {kind.__name__.lower()} {', '.join(wrong)}; leave them out"
            )
    return found


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
