"""Options of reading data, as users give them and as a run records them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from samebits.data import load
from samebits.errors import InputError
from samebits.recipes.reading import (
    PLAIN,
    Reading,
    as_arguments,
    prepared,
    read,
    reading_of,
)


@pytest.mark.parametrize("given", [32, "32", "32x32", "32X32", (32, 32), [32]])
def test_sizes(given):
    assert Reading(resize=given).resize == (32, 32)


def test_height_comes_first():
    assert Reading(resize="24x32").resize == (24, 32)


@pytest.mark.parametrize(
    "given",
    [*("", "x", "0", "-3", "3x", "1x2x3", "²", "9" * 5000), *(0, 5000, (1, 2, 3), True, (True, 8))],
    ids=lambda given: f"{given!r:.20}",
)
def test_other_sizes_are_named(given):
    with pytest.raises(InputError, match="--resize: expected a side N, or HEIGHTxWIDTH"):
        Reading(resize=given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target": "a,,b"}, "--target: expected different names of columns"),
        ({"target": "a,a"}, "--target: expected different names of columns"),
        ({"task": "sorting"}, "--task: expected one of classification, regression, multilabel"),
        ({"colour": "red"}, "--colour: expected one of grey, rgb, found 'red'"),
        ({"mean": "0.5,x", "std": "1,1"}, "--mean: expected a number, or one for each channel"),
        ({"mean": 0.5, "std": "nan"}, "--std: expected a number, or one for each channel"),
        ({"mean": 0.5, "std": [1] * 5}, "--std: expected a number, or one for each channel"),
        ({"mean": 0.5}, "--mean, --std: expected both, with as many numbers, found 1 and 0"),
        ({"mean": "1,2", "std": 1}, "--mean, --std: expected both, with as many numbers, found 2"),
        ({"mean": 0, "std": 0}, "--std: expected numbers of at least 1e-06, found 0.0"),
    ],
)
def test_other_values_are_named(options, text):
    with pytest.raises(InputError) as caught:
        Reading(**options)
    assert text in str(caught.value)


def test_spaces_around_columns_do_not_count():
    assert Reading("y, x ").target == ("y", "x")
    assert Reading([" y"]).target == ("y",)
    with pytest.raises(InputError, match="--target: expected different names"):
        Reading("y, y")


def test_a_record_reads_back():
    options = Reading("a,b", "regression", "3x4", True, "grey", "0.1, -1e3", (2, 3))
    assert (options.mean, options.std) == ((0.1, -1000.0), (2.0, 3.0))
    assert Reading.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    assert Reading.from_dict(PLAIN.to_dict()) == PLAIN


@pytest.mark.parametrize(
    "record",
    [
        *(None, [], 3, {"x": 1}, {"resize": {}}, {"target": [1]}, {"target": 5}, {"task": []}),
        *({"mean": [m], "std": [1]} for m in (10**400, True, "x", [1], None, {}, 1e300)),
        *({"resample": "no"}, {"resample": 1}, {"resize": 8.0}, {"resize": [True, 8.5]}),
    ],
)
def test_other_records_are_refused(record):
    with pytest.raises(InputError):
        Reading.from_dict(record)


def test_arguments_give_the_same_options():
    chosen = Reading("a,b c", "regression", "3x4", True, "grey", 0.1, [0.25]).to_dict()
    assert as_arguments(chosen) == [
        *("--target", "a,b c", "--task", "regression", "--resize", "3x4", "--resample"),
        *("--colour", "grey", "--mean", "0.1", "--std", "0.25"),
    ]
    assert as_arguments({}) == []


def test_options_among_others():
    options = Reading("a", "regression", 8, True)
    assert options.among(("resize", "target", "colour")) == Reading("a", resize=8)
    assert options.among(()) == PLAIN


def test_numbers_of_numpy_and_torch():
    for given in (np.array([0.25, 0.5]), torch.tensor([0.25, 0.5]), [np.float32(0.25), 0.5]):
        assert Reading(mean=given, std=given).mean == (0.25, 0.5)
    assert Reading(resize=np.int64(8)) == Reading(resize=8)
    with pytest.raises(InputError, match="--std: expected numbers of at least 1e-06, found -3"):
        Reading(mean=0, std=-3)
    with pytest.raises(InputError, match="--target: expected different names of columns"):
        Reading(target=5)


def test_what_is_read_keeps_its_options():
    assert reading_of(read("t.csv", target="y", resize=8)) == ("t.csv", Reading("y", resize=8))
    assert reading_of(prepared(read("t.npz"))) == ("t.npz", Reading(prepared=True))
    assert reading_of("t.csv") == ("t.csv", PLAIN)
    with pytest.raises(TypeError, match=r"expected its options target, task, .*, found colur$"):
        read("photos", colur="rgb")


def test_recorded_values_are_of_pixels():
    recorded = Reading(mean=0.1, std=0.2, resize=4)
    assert PLAIN.beside(recorded, ("resize", "mean", "std")) == Reading(resize=4)
    assert PLAIN.with_values_of(recorded) == Reading(mean=0.1, std=0.2)
    given = Reading(mean=0, std=1)
    assert given.with_values_of(recorded) == given
    assert PLAIN.with_values_of(Reading(resize=4)).chosen() == {}


def test_recorded_options_apply_where_they_can():
    recorded = Reading("a", "regression", 8, True)
    assert PLAIN.beside(recorded, ("task",)) == Reading(task="regression")
    given = Reading(resize=9)
    assert given.beside(recorded, ("resize", "colour")) == given


def test_targets_keep_the_order_of_training():
    recorded = Reading("p,q")
    assert Reading("p,q").beside(recorded, ("target",)) == recorded
    assert Reading("r,s").beside(recorded, ("target",)).target == ("r", "s")
    with pytest.raises(InputError, match="expected p,q, the order of training, found q,p; give"):
        Reading("q,p").beside(recorded, ("target",))


@pytest.mark.parametrize("name", ["target", "task", "resize", "resample", "colour", "mean"])
def test_an_option_that_does_not_apply_is_named(name):
    given = {"target": "x", "task": "regression", "resize": 8, "resample": True, "colour": "grey"}
    given = {name: {name: value} for name, value in given.items()} | {"mean": {"mean": 0, "std": 1}}
    with pytest.raises(InputError, match=f"digits: --{name} does not apply to digits"):
        load("digits", options=Reading(**given[name]))
