"""Recipes: every option from Python, from the command line, and through JSON; who takes which."""

from __future__ import annotations

import inspect
import json
import tomllib

import pytest
import torch
import typer
from torch import nn

import samebits as sb
from samebits import cli
from samebits.cli.options import reads
from samebits.codegen.lowering.cpu import CPUS
from samebits.codegen.packaging import projects
from samebits.errors import InputError
from samebits.quantization import ACTIVATIONS, WEIGHTS
from samebits.recipes import (
    RECIPES,
    Reading,
    Recipe,
    from_record,
    option_of,
    read_recipes,
    reading_of,
    takes,
)
from samebits.recipes.deployment import CPUS as CPU_NAMES
from samebits.recipes.deployment import PROJECTS
from samebits.recipes.quantization import SCHEMES, WEIGHT_FORMATS
from samebits.recipes.reading import as_arguments
from samebits.recipes.record import flag_of, kind_of
from samebits.recipes.training import ARCHITECTURES as ARCHITECTURE_NAMES
from samebits.train.architectures import ARCHITECTURES

MOST = 8  # parameters of a public function
VALUES = {  # of options whose form is their own
    "state": {"h": "hn"},
    "loss": "losses:own",
    "keep_float": "head",
    "plan": "auto",
    "memory_budget": "40%",
    "plan_device": "laptop-cpu",
    "trace": "run.trace",
    "tensorboard": "events",
    "floor": 20,
    "native_dim": 32,
    "mantissa": 12,
    "target": ["a", "b"],
    "resize": [3, 4],
    "mean": [0.5],
    "std": [0.25],
}
OPTIONS = [(kind, name) for kind in RECIPES.values() for name in kind.options()]


def value_of(kind, name):
    """A value that is not the default, as JSON has it."""
    place = kind.options()[name]
    said = option_of(place)
    if name in VALUES:
        return VALUES[name]
    if said.choices:
        return next(choice for choice in said.choices if choice != place.default)
    found = {"int": 16, "float": 0.5, "bool": True, "str": "cuda"}[kind_of(place)]
    return {"sequence": "step", "augment": "flip", "widths": "6,12,32", "prefix": "net"}.get(
        name, found
    )


def recipe_of(kind, name):
    both = ("mean", "std")  # neither without the other
    return kind(**{each: value_of(kind, each) for each in (both if name in both else (name,))})


def public():
    """Every public function, and methods and constructors of public classes but recipes."""
    for name in (*sb.__all__, "SamebitsClassifier", "SamebitsRegressor"):
        found = getattr(sb, name)
        members = {name: found}
        if inspect.ismodule(found):
            members = {f"{name}.{each}": getattr(found, each) for each in found.__all__}
        for label, member in members.items():
            if inspect.isclass(member) and not issubclass(member, Recipe):
                yield from (
                    (f"{label}.{each}", method)
                    for each, method in inspect.getmembers(member, inspect.isfunction)
                    if not each.startswith("_") and method.__module__.startswith("samebits")
                )
                yield label, member
            elif inspect.isfunction(member):
                yield label, member


def test_no_public_function_has_many_parameters():
    pytest.importorskip("sklearn", reason="estimators are scikit-learn's")
    counts = {}
    for name, function in public():
        names = [n for n in inspect.signature(function).parameters if n not in ("self", "cls")]
        counts[name] = len(names)
    assert len(counts) > 60
    assert {name: count for name, count in counts.items() if count > MOST} == {}


@pytest.mark.parametrize(("kind", "name"), OPTIONS, ids=lambda x: getattr(x, "__name__", x))
def test_every_option_comes_back_from_json(kind, name, tmp_path):
    made = recipe_of(kind, name)
    assert name in made.to_dict()
    record = json.loads(json.dumps({kind.__name__.lower(): made.to_dict()}))
    assert from_record(record, "it") == {kind.__name__.lower(): made}
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(record))
    assert read_recipes(path) == {kind.__name__.lower(): made}


def commands():
    """The commands that take a recipe, their options by name, and which recipes they take."""
    group = typer.main.get_command(cli.app)
    for command in group.commands.values():
        found = getattr(command.callback, "recipes", None)
        if found is None:
            found = getattr(inspect.unwrap(command.callback), "recipes", {})
        yield command, {o: p for p in command.params for o in p.opts}, found


def test_every_option_is_on_the_command_line():
    reached = set()
    for command, flags, recipes in commands():
        for kind, names in recipes.values():
            for name in names:
                assert flag_of(name) in flags, (command.name, name)
                assert option_of(kind.options()[name]).help == flags[flag_of(name)].help
                reached.add((kind, name))
    assert set(OPTIONS) - reached == set()


def commanded(kind, arguments):
    """The recipe that a command of this recipe alone gets."""
    heard = []

    def command(recipe, quiet):
        heard.append(recipe)

    parameters = [
        inspect.Parameter("recipe", inspect.Parameter.KEYWORD_ONLY, annotation=kind),
        inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool),
    ]
    command.__annotations__ = {"recipe": kind, "quiet": bool}
    command.__signature__ = inspect.Signature(parameters)
    app = typer.Typer()
    app.command()(reads({})(command))
    app(arguments, standalone_mode=False)
    (recipe,) = heard
    return recipe


@pytest.mark.parametrize(("kind", "name"), OPTIONS, ids=lambda x: getattr(x, "__name__", x))
def test_the_command_line_makes_the_same_recipe(kind, name):
    """By its flag, parsed by a command of this recipe alone."""
    made = recipe_of(kind, name)
    if kind is Reading:
        arguments = as_arguments(made.to_dict())
    else:
        value = value_of(kind, name)
        arguments = [flag_of(name)]
        if isinstance(value, dict):
            arguments += [f"{key}={of}" for key, of in value.items()]
        elif value is not True:
            arguments.append(str(value))
    assert commanded(kind, arguments) == made


def test_values_are_those_of_the_code():
    assert list(ACTIVATIONS) == list(SCHEMES)
    assert list(WEIGHTS) == list(WEIGHT_FORMATS)
    assert list(CPUS) == list(CPU_NAMES)
    assert ("make", *projects._LAYOUTS) == PROJECTS
    assert set(ARCHITECTURES) == set(ARCHITECTURE_NAMES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sb.Training(lr=0.1),
            "Training: expected its options epochs, batch, shards, seed, limit, augment, "
            "label_smoothing, loss, found lr, an option of FineTuning and of Optimizer; give "
            "samebits.FineTuning(lr=...) or samebits.Optimizer(lr=...)",
        ),
        (
            lambda: sb.fit("digits", "mlp", "out", weights="s4"),
            "fit: expected data, arch, out, init, reporter, done and the recipes Training, "
            "Optimizer, Numerics, Recomputation, Execution, found weights=, an option of "
            "Formats, which fit does not take; leave it out",
        ),
        (
            lambda: sb.fit("digits", "mlp", "out", sb.Formats()),
            "fit: expected the recipes Training, Optimizer, Numerics, Recomputation, Execution, "
            "found Formats(scheme, weights, output_bits, per_tensor, mixed)",
        ),
        (
            lambda: sb.fit("digits", "mlp", "out", sb.Training(), sb.Training(epochs=1)),
            "fit: expected the recipes Training, Optimizer, Numerics, Recomputation, Execution, "
            "each once, found another Training(epochs, batch, shards, seed, limit, augment, "
            "label_smoothing, loss)",
        ),
        (
            lambda: sb.plan("resnet8", resize=8),
            "plan: expected source, example, loss, input_shape, classes, time_limit, threads and "
            "the recipes Training, Numerics, Recomputation, found resize=, an option of reading "
            "data, which plan does not take; leave it out",
        ),
    ],
)
def test_options_of_other_recipes(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


def test_recipes_are_frozen_and_know_what_was_chosen():
    made = sb.Training(epochs=10, batch=8, shards=None)
    assert made.chosen() == {"epochs": 10, "batch": 8}  # what is given at its default too
    assert made.to_dict() == {"batch": 8}
    assert made == sb.Training(batch=8)
    assert made.but(seed=3).chosen() == {"epochs": 10, "batch": 8, "seed": 3}
    with pytest.raises(AttributeError):
        made.batch = 9


def test_files_of_recipes(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text('[training]\nepochs = 2\n[numerics]\nwidths = "6,12,32"\n')
    assert tomllib.loads(path.read_text())["training"] == {"epochs": 2}
    assert list(read_recipes(path).values()) == [
        sb.Training(epochs=2),
        sb.Numerics(widths="6,12,32"),
    ]
    for text, message in (
        ("[training", "expected recipes as TOML"),
        ("[trainings]\n", "expected tables of options named packaging, accelerator"),
        ("[training]\nlr = 1\n", "Training: expected its options epochs, batch"),
        ("[training]\nepochs = 0\n", "--epochs: expected a whole number from 1, found 0"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=r"small\.toml: ") as caught:
            read_recipes(path)
        assert message in str(caught.value)


def test_a_command_takes_a_file_of_recipes(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text("[training]\nepochs = 2\nbatch = 8\n")
    assert commanded(sb.Training, ["--recipe", str(path)]) == sb.Training(epochs=2, batch=8)
    beside = commanded(sb.Training, ["--recipe", str(path), "--epochs", "10"])
    assert beside == sb.Training(epochs=10, batch=8)
    with pytest.raises(InputError, match=r"expected tables optimizer of this command's options"):
        commanded(sb.Optimizer, ["--recipe", str(path)])


def test_what_was_asked_for_is_kept(tmp_path):
    given = sb.Training(epochs=1, batch=32, limit=10), sb.Optimizer(lr=0.05)
    sb.fit("digits", "mlp", tmp_path / "run", *given, sb.Numerics(numerics="float32"))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recipes"] == {
        "numerics": {"numerics": "float32"},
        "optimizer": {"lr": 0.05},
        "training": {"epochs": 1, "batch": 32, "limit": 10},
    }
    assert from_record(config["recipes"], "it")["training"] == given[0]
    asked = sb.Formats(weights="symmetric-s4")
    net = sb.quantize(tmp_path / "run", "digits", asked)
    found = sb.load(net.save(tmp_path / "net.onnx"))
    assert found.contract.recipes == {"formats": {"weights": "symmetric-s4"}}
    assert from_record(found.contract.recipes, "it")["formats"] == asked
    with pytest.raises(InputError, match=r"expected a contract samebits-contract-1"):
        net.with_contract({"recipes": {"formats": {"weights": "int4"}}})


def test_single_options_may_be_given_by_name():
    @takes(sb.Training, sb.Optimizer)
    def given(data, arch="mlp", *recipes, out="here"):
        return data, arch, recipes, out

    training, optimizer = sb.Training(epochs=3), sb.Optimizer(lr=0.5)
    assert given("d", epochs=3, lr=0.5) == ("d", "mlp", (training, optimizer), "here")
    assert given("d", "cnn", optimizer, epochs=3) == ("d", "cnn", (optimizer, training), "here")
    assert given(data="d", out="there", lr=0.5) == ("d", "mlp", (optimizer,), "there")
    with pytest.raises(InputError, match="--epochs: expected a whole number from 1, found 0"):
        given("d", epochs=0)


def test_options_of_reading_may_be_given_by_name():
    @takes(sb.Training, data="data")
    def given(model, data="digits", *recipes):
        return model, *reading_of(data), recipes

    table = sb.read("t.csv", target="y")
    assert given("m", "t.csv", target="y") == ("m", *reading_of(table), ())
    both = given("m", table, task="regression", epochs=2)
    reading = Reading(target="y", task="regression")
    assert both == ("m", "t.csv", reading, (sb.Training(epochs=2),))
    with pytest.raises(TypeError, match=r"an option of reading data, which plan does not take"):
        sb.plan("mlp", target="y")


def test_recipes_may_stand_where_operands_are_left_out():
    @takes(sb.Training, sb.Optimizer)
    def given(data, arch="mlp", *recipes, out="here"):
        return data, arch, recipes, out

    training, optimizer = sb.Training(epochs=3), sb.Optimizer(lr=0.5)
    assert given("d", training) == ("d", "mlp", (training,), "here")
    assert given("d", training, "cnn") == ("d", "cnn", (training,), "here")
    assert given("d", training, lr=0.5) == ("d", "mlp", (training, optimizer), "here")


GIVEN_AT_DEFAULT = [
    (lambda net, at: sb.quantize(net, SAMPLES, epochs=1), "--epochs: expected data to fine-tune"),
    (lambda net, at: sb.quantize(net, SAMPLES, sb.FineTuning(lr=0.001)), "--lr: expected data to"),
    (
        lambda net, at: sb.fit("digits", "mlp", at, numerics="float32", exponents="tensor"),
        "--exponents: expected none for numerics float32, found tensor",
    ),
    (
        lambda net, at: net.compile(at, target="npu", package="make"),
        "--package does not apply to --target npu, found make",
    ),
    (
        lambda net, at: net.compile(at, target="c", native_dim=16),
        "--native-dim does not apply to --target c, found 16",
    ),
    (
        lambda net, at: sb.quantize(net, sb.read(SAMPLES, resample=False)),
        "--resample does not apply",
    ),
    (
        lambda net, at: sb.quantize(net, SAMPLES).report(SAMPLES, seed=0),
        "--seed 0: expected samples random:N",
    ),
    (
        lambda net, at: sb.quantize(net, SAMPLES).verify(SAMPLES, seed=0),
        "--seed 0: expected samples random:N",
    ),
]
SAMPLES = torch.arange(32.0).reshape(8, 4) / 32


@pytest.mark.parametrize(("call", "words"), GIVEN_AT_DEFAULT)
def test_options_given_at_their_default_count_as_given(call, words, tmp_path):
    net = sb.load(nn.Sequential(nn.Linear(4, 3)), example=SAMPLES[:1])
    with pytest.raises(InputError) as caught:
        call(net, tmp_path / "out")
    assert words in str(caught.value)


def test_two_names_of_one_option_are_refused():
    with pytest.raises(TypeError, match="expected device or plan_device, which are one option"):
        sb.plan("mlp", device="laptop-cpu", plan_device="laptop-cpu")


@pytest.mark.parametrize(
    ("kind", "option", "value", "words"),
    [
        (sb.Training, "epochs", -(10**400), "--epochs: expected a whole number from 1, found -1"),
        (sb.Accelerator, "native_dim", -(10**400), "--native-dim: expected a whole number"),
        (sb.Calibration, "floor", 10**400, "--floor: expected a number of dB, or none"),
        (sb.Calibration, "floor", True, "--floor: expected a number of dB, or none, found True"),
        (sb.Recurrence, "state", 5, "--state: expected pairs of names"),
        (sb.Recurrence, "state", [5], "--state: expected pairs of names"),
        (sb.Recurrence, "state", {"h": [1]}, "--state: expected pairs of names"),
        (sb.Recomputation, "plan", 3, "--plan: expected none, auto or the name of a plan's file"),
        (sb.Recomputation, "plan_device", 2.5, "--plan-device: expected the name of a device"),
        (sb.Recomputation, "memory_budget", True, "--memory-budget: expected bytes, or a text"),
        (sb.Recomputation, "memory_budget", 0.4, "--memory-budget: expected bytes, or a text"),
        (sb.Execution, "trace", ["a"], "--trace: expected the name of a file, found ['a']"),
        (sb.Execution, "tensorboard", 1, "--tensorboard: expected the name of a folder, found 1"),
    ],
)
def test_values_of_files_are_refused_in_words(kind, option, value, words):
    with pytest.raises(InputError) as caught:
        kind.from_dict({option: value})
    assert words in str(caught.value)
