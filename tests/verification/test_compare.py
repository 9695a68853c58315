"""Verdicts: what differs, where, by how much, and the hashes of what was compared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from samebits.ir import Graph, GraphBuilder, Quantization
from samebits.verification.compare import Difference, Verdict, agreeing, compare

SCALE = Fraction(1, 4)


def graph(dtype: str = "int8", shape: tuple[int, ...] = (1, 3), outputs: int = 1) -> Graph:
    """Outputs y, y.2, ... with scale 1/4 and zero point 2."""
    builder = GraphBuilder("g")
    x = builder.input("x", dtype, shape)
    quantization = Quantization(SCALE, 2)
    return builder.build(
        [
            builder.add(
                *("clip", [x], {"low": -128, "high": 127}, "clip", ["y"]),
                quantization=quantization,
            )
            for _ in range(outputs)
        ]
    )


def codes(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int8)


def sha(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def test_equal_codes():
    expected = [codes([1, 2, 3], [4, 5, 6])]
    verdict = compare("c", graph(), expected, [expected[0].copy()], note="why not")
    assert verdict == Verdict(
        backend="c",
        differing=0,
        total=6,
        samples=0,
        sample_count=2,
        largest=0.0,
        first=(),
        sha256=sha(expected[0]),
        expected_sha256=sha(expected[0]),
        skipped=None,
        note="why not",
    )
    assert verdict.equal


def test_differing_codes():
    expected = codes([1, 2, 3], [4, 5, 6], [7, 8, 9])
    found = codes([1, 2, 3], [4, 9, -6], [7, 8, 10])
    verdict = compare("c", graph(), [expected], [found])
    assert not verdict.equal
    assert (verdict.differing, verdict.total) == (3, 9)
    assert (verdict.samples, verdict.sample_count) == (2, 3)
    assert verdict.largest == 12.0
    assert verdict.first == (
        Difference("y", (1, 1), 5, 9),
        Difference("y", (1, 2), 6, -6),
        Difference("y", (2, 2), 9, 10),
    )
    assert (verdict.sha256, verdict.expected_sha256) == (sha(found), sha(expected))


def test_the_largest_difference_of_the_whole_type():
    expected, found = codes([-128, 0, 0]), codes([127, 0, 0])
    assert compare("c", graph(), [expected], [found]).largest == 255.0


def test_the_first_five_over_all_outputs():
    expected = [codes([0, 0, 0], [0, 0, 0])] * 2
    found = [codes([0, 1, 1], [1, 0, 0]), codes([1, 1, 1], [1, 1, 1])]
    verdict = compare("c", graph(outputs=2), expected, found)
    assert verdict.differing == 9
    assert [(d.output, d.index) for d in verdict.first] == [
        ("y", (0, 1)),
        ("y", (0, 2)),
        ("y", (1, 0)),
        ("y.2", (0, 0)),
        ("y.2", (0, 1)),
    ]
    assert (verdict.total, verdict.samples, verdict.sample_count) == (12, 2, 2)
    joined = b"".join(a.tobytes() for a in found)
    assert verdict.sha256 == hashlib.sha256(joined).hexdigest()


def test_reals_are_compared_as_the_dequantized_codes():
    expected = codes([2, 3, -128])
    found = np.array([[0.0, 0.25, -32.5]], np.float32)
    verdict = compare("onnxruntime", graph(), [expected], [found])
    assert verdict.equal
    assert verdict.sha256 == verdict.expected_sha256 == sha(expected)  # as of a backend of codes
    found[0, 1] = 1.0
    verdict = compare("onnxruntime", graph(), [expected], [found])
    assert (verdict.sha256, verdict.expected_sha256) == (
        sha(found),
        sha(np.array([[0.0, 0.25, -32.5]], np.float32)),
    )
    assert verdict.first == (Difference("y", (0, 1), 0.25, 1.0),)
    assert verdict.largest == 3.0  # steps of the scale, not 0.75


def test_one_bit_of_a_real_is_a_difference():
    found = np.array([[0.0, np.nextafter(np.float32(0.25), np.float32(1)), 0.5]], np.float32)
    verdict = compare("onnxruntime", graph(), [codes([2, 3, 4])], [found])
    assert (verdict.differing, verdict.first[0].index) == (1, (0, 1))
    assert 0 < verdict.largest < 1e-6


def test_zero_of_either_sign_is_the_same_number():
    found = np.array([[-0.0, 0.0, -0.0]], np.float32)
    verdict = compare("onnxruntime", graph(), [codes([2, 2, 2])], [found])
    assert verdict.equal
    assert verdict.sha256 == sha(codes([2, 2, 2]))


def test_nan_and_infinity_differ():
    found = np.array([[np.nan, np.inf, 0.5]], np.float32)
    verdict = compare("onnxruntime", graph(), [codes([2, 3, 4])], [found])
    assert verdict.differing == 2
    assert not verdict.equal
    assert verdict.largest > 1e300


def test_other_shapes_are_an_error():
    with pytest.raises(ValueError, match=r"c: output 'y': expected \(1, 3\), found \(1, 2\)"):
        compare("c", graph(), [codes([1, 2, 3])], [codes([1, 2])])
    with pytest.raises(ValueError, match="zip"):
        compare("c", graph(), [codes([1, 2, 3])], [])


def test_hashes_do_not_depend_on_byte_order():
    wide = np.array([[1, 2, 300]], np.int16)
    verdict = compare("s390x", graph("int16"), [wide], [wide.astype(">i2")])
    assert verdict.equal
    assert verdict.sha256 == verdict.expected_sha256 == sha(wide.astype("<i2"))


def test_skipped_is_not_equal():
    verdict = Verdict("c", skipped="no compiler")
    assert not verdict.equal
    assert verdict.to_dict()["equal"] is False


def test_to_dict_is_json():
    found = codes([1, 9, 3])
    verdict = compare("c", graph(), [codes([1, 2, 3])], [found], "a note")
    record = verdict.to_dict()
    assert json.loads(json.dumps(record)) == {
        "backend": "c",
        "differing": 1,
        "total": 3,
        "samples": 1,
        "sample_count": 1,
        "largest": 7.0,
        "first": [{"output": "y", "index": [0, 1], "expected": 2, "found": 9}],
        "sha256": sha(found),
        "expected_sha256": sha(codes([1, 2, 3])),
        "between": [0, 0, 0],
        "skipped": None,
        "note": "a note",
        "equal": False,
    }
    assert verdict.to_dict() == record  # a copy each time


def test_to_dict_of_nan_is_json_that_everybody_reads():
    """JSON has no NaN and no infinity."""
    found = np.array([[np.nan, np.inf, 0.5]], np.float32)
    verdict = compare("onnxruntime", graph(), [codes([2, 3, 4])], [found])
    json.dumps(verdict.to_dict(), allow_nan=False)


def test_who_agrees_with_whom():
    """Where more than two kinds of outputs are there."""
    expected, one, two = (codes([1, n]) for n in (2, 3, 4))
    verdicts = [compare(name, graph(), [expected], [found]) for name, found in (
        ("a", expected), ("b", one), ("c", two), ("d", one))]  # fmt: skip
    assert agreeing(verdicts) == ["same outputs: the reference, a", "same outputs: b, d"]
    assert agreeing(verdicts[:2]) == []


def test_codes_between_count():
    verdict = compare("a", graph(), [codes([1, 2])], [codes([1, 2])])
    assert verdict.equal
    assert not replace(verdict, between=(1, 20, 3)).equal
