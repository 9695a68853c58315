"""Verdicts: ratios, decisions, what counts as lost, and text of untrusted files."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from samebits.errors import InputError
from samebits.ir.fidelity import (
    STORED,
    Fidelity,
    OutputFidelity,
    compared,
    floor_of,
    lost_tensors,
    restored,
)
from samebits.recipes import Calibration

SAME = np.array([[50.6, 50.5]] * 16)  # always the first of two


def one(expected, found):
    return compared(["y"], {"y": np.asarray(expected)}, {"y": np.asarray(found)})[0]


def test_the_ratio_is_that_of_all_samples():
    found = one([[3.0, 0.0], [0.0, 4.0]], [[3.0, 0.0], [0.0, 3.5]])
    assert found.sqnr_db == pytest.approx(10 * math.log10(25 / 0.25))
    assert one([[1.0, 2.0]], [[1.0, 2.0]]).sqnr_db is None
    assert one([[0.0, 0.0]], [[1.0, 0.0]]).sqnr_db == -math.inf


def test_decisions_are_the_greatest_number():
    expected = np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]]
    found = np.eye(4)[[0, 1, 2, 2, 0, 1, 2, 2]]
    verdict = one(expected, found)
    assert (verdict.agreement, verdict.decisions, verdict.wanted) == (0.75, 3, 4)
    assert not verdict.collapsed


@pytest.mark.parametrize(
    ("expected", "found", "agreement"),
    [
        ([0.1, 0.9, 0.4, 0.6], [0.2, 0.8, 0.6, 0.7], 0.75),  # probabilities: above 1/2
        ([-1.0, 2.0, -0.5, 0.1], [-2.0, 1.0, 0.5, 0.2], 0.75),  # others: above 0
    ],
)
def test_one_number_decides_by_its_side_of_the_middle(expected, found, agreement):
    assert one(np.array(expected)[:, None], np.array(found)[:, None]).agreement == agreement


def test_several_rows_decide_nothing():
    assert one(np.ones((3, 4, 5)), np.ones((3, 4, 5))).agreement is None


def test_indices_are_decisions():
    verdict = one(np.array([[1], [2], [3], [1]]), np.array([[1], [2], [3], [3]]))
    assert (verdict.sqnr_db, verdict.agreement, verdict.decisions) == (None, 0.75, 3)


def test_one_decision_left_of_several():
    """Whatever the ratio: a constant beside the decision may make it look good."""
    scores = np.array([[1.0, 0.0], [0.0, 1.0]] * 8) + 50
    verdict = Fidelity(16, (one(scores, SAME[:16]),))
    assert verdict.worst_db > 30
    assert verdict.bad
    assert "one decision left of 2 on 16 samples" in verdict.warning()
    few = Fidelity(4, (one(scores[:4], SAME[:4]),))
    assert not few.bad  # too few samples to say so


@pytest.mark.parametrize(("ratio", "bad"), [(9.9, True), (10.0, False), (None, False)])
def test_bad_is_below_ten_decibels(ratio, bad):
    verdict = Fidelity(8, (OutputFidelity("y", ratio),), cause="input", advice="do this")
    assert verdict.bad == bad
    text = verdict.warning()
    assert text == (
        "the integers have lost the network: output 'y' keeps 9.9 dB on 8 samples; the cause: "
        "input; do this"
        if bad
        else ""
    )


def test_a_floor_of_the_callers():
    verdict = Fidelity(8, (OutputFidelity("y", 15.0),))
    assert verdict.below(16)
    assert not verdict.below(14)
    assert "at least 16 dB" in verdict.refusal(16)
    found = [floor_of(Calibration(floor=given).floor) for given in (None, "none", "12.5", 3)]
    assert found == [None, None, 12.5, 3.0]
    for wrong in ("much", "nan", "inf"):
        with pytest.raises(InputError, match="--floor: expected a number of dB, or none"):
            Calibration(floor=wrong)


def test_a_verdict_survives_a_file():
    outputs = (OutputFidelity("y", 12.5, 0.75, 3, 4), OutputFidelity("z", None))
    verdict = Fidelity(8, outputs, ("a", "b"), "weights", "more bits")
    assert restored(verdict.stored()) == verdict


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"outputs": 1}', "9" * (STORED + 1), "[" * 5000, json.dumps(
        {"samples": "x", "outputs": [], "lost": [], "cause": "", "advice": ""}
    )],
)  # fmt: skip
def test_text_that_is_no_verdict(text):
    assert restored(text) is None


def test_tensors_that_are_lost():
    tensors = (OutputFidelity("a", 5.9), OutputFidelity("b", 6.0), OutputFidelity("c", None))
    report = SimpleNamespace(tensors=tensors, states={"h": -1.0})
    assert lost_tensors(report) == ("a", "h")
