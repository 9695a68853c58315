"""Every route gives the bits that are committed: a change of any is seen, and said, in review."""

from __future__ import annotations

import json
import re

import pytest

from pins import ROUTES, Route, UnavailableError
from pins.book import check, read, regenerate

# Routes train for a few steps: what that teaches is no network yet.
pytestmark = pytest.mark.filterwarnings("ignore::samebits.errors.FidelityWarning")

HASH = {letter: letter * 64 for letter in "abc"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if route.slow else [])
        for name, route in ROUTES.items()
    ],
)
def test_bits_are_those_of_the_release(name):
    try:
        found = ROUTES[name].compute()
    except UnavailableError as error:
        pytest.skip(str(error))
    check(name, read().get(name, {}), found)


def test_the_file_holds_the_routes_and_nothing_else():
    removed, added = read().keys() - ROUTES.keys(), ROUTES.keys() - read().keys()
    assert not removed | added, f"removed {removed}, added {added}: regenerate by `make pins`"


def test_every_pin_is_a_hash():
    for name, pins in read().items():
        assert pins, name
        assert all(re.fullmatch("[0-9a-f]{64}", pin) for pin in pins.values()), name


def test_a_plan_changes_no_bit():
    book = read()
    for order in ("sequential", "paired"):
        for name, pin in book["training-resnet8"].items():
            assert book["training-resnet8-plan"][f"{order}: {name}"] == pin


@pytest.mark.parametrize("prefix", ["asymmetric-s8", "power-of-two-s8"])
def test_what_computes_one_model_gives_one_hash(prefix):
    book = read()
    pins = book["quantized-cnn"]
    assert pins[f"{prefix}: torch"] == pins[f"{prefix}: interpreter"]
    assert book["quantized-cnn-c"][prefix] == pins[f"{prefix}: interpreter"]


def test_a_pin_that_changed_is_told_to_its_reader():
    expected = {"same": HASH["a"], "other": HASH["b"], "gone": HASH["c"]}
    found = {"same": HASH["a"], "other": HASH["c"], "new": HASH["b"]}
    with pytest.raises(AssertionError) as error:
        check("a route", expected, found)
    assert str(error.value).split("\n") == [
        "route 'a route': expected the 3 pins of tests/golden/bits.json, found 3 others:",
        f"  removed  'gone': expected {HASH['c']}, found none",
        f"  added    'new': expected none, found {HASH['b']}",
        f"  changed  'other': expected {HASH['b']}, found {HASH['c']}",
        "If a computed bit is meant to change, list it under Bits in CHANGELOG.md and raise the "
        "edition, then regenerate by `make pins`; else undo what changed it.",
    ]


def test_the_same_pins_pass():
    check("a route", {"x": HASH["a"]}, {"x": HASH["a"]})


def test_regenerating_says_what_it_changes(tmp_path):
    path = tmp_path / "bits.json"
    routes = {
        "two": Route("two", lambda: {"z": HASH["b"], "y": HASH["a"]}),
        "one": Route("one", lambda: {"x": HASH["a"]}),
    }
    assert list(regenerate(path, routes)) == [
        f"one: added    'x': expected none, found {HASH['a']}",
        f"two: added    'y': expected none, found {HASH['a']}",
        f"two: added    'z': expected none, found {HASH['b']}",
        "bits.json: 3 pins of 2 routes, 3 other than before",
    ]
    text = path.read_text(encoding="utf-8")
    assert list(json.loads(text)) == ["one", "two"]
    assert text.index('"y"') < text.index('"z"')
    assert text.endswith("}\n")
    del routes["one"]
    assert list(regenerate(path, routes)) == [
        f"one: removed  'x': expected {HASH['a']}, found none",
        "bits.json: 2 pins of 1 routes, 1 other than before",
    ]
    assert list(read(path)) == ["two"]


def test_nothing_is_written_where_a_route_cannot_run(tmp_path):
    def unavailable():
        raise UnavailableError("c: no compiler")

    path = tmp_path / "bits.json"
    with pytest.raises(UnavailableError, match=r"^route 'c': c: no compiler; nothing was written$"):
        list(regenerate(path, {"c": Route("c", unavailable)}))
    assert not path.exists()
