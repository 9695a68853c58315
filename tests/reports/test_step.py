"""The report of a training step's profile: every time is in it once."""

from __future__ import annotations

from samebits.reports.step import step_report
from samebits.train.run.profile import StepProfile, TimedCall

CALLS = (
    TimedCall("quantize", "(input)", "forward", 0, 0.001),
    TimedCall("products", "layer 'a' (Linear)", "forward", 3_000_000, 0.002),
    TimedCall("with_bias", "layer 'a' (Linear)", "forward", 0, 0.001),
    TimedCall("products", "layer '<b>' (Linear)", "forward", 1_000_000, 0.001),
    TimedCall("entropy", "(loss)", "forward", 0, 0.0005),
    TimedCall("times", "(loss)", "backward", 0, 0.0005),
    TimedCall("weight_gradient", "layer '<b>' (Linear)", "backward", 1_000_000, 0.002),
    TimedCall("behind_mask", "layer 'r' (ReLU)", "backward", 0, 0.001),
    TimedCall("weight_gradient", "layer 'a' (Linear)", "backward", 3_000_000, 0.001),
)
REPORT = step_report("run", StepProfile(CALLS, 0.005, 0.03, 64, 2))


def rows(title: str) -> dict[str, list[str]]:
    (table,) = (s for s in REPORT.sections if s.title == title)
    return {row[0]: list(row[1:]) for row in table.blocks[0].rows}


def test_layers_from_the_first_down():
    found = rows("Layers")
    assert found == {
        "layer 'a' (Linear)": ["3.000", "1.000", "40.0 %", "6,000,000", "1.5"],
        "layer 'r' (ReLU)": ["0.000", "1.000", "10.0 %", "", ""],
        "layer '<b>' (Linear)": ["1.000", "2.000", "30.0 %", "2,000,000", "0.7"],
        "(input)": ["1.000", "0.000", "10.0 %", "", ""],
        "(loss)": ["0.500", "0.500", "10.0 %", "", ""],
    }
    assert list(found) == [
        *("(input)", "layer 'a' (Linear)", "layer 'r' (ReLU)", "layer '<b>' (Linear)", "(loss)")
    ]


def test_kernels_the_longest_first():
    found = rows("Kernels")
    assert list(found)[:2] == ["products", "weight_gradient"]
    assert found["products"] == ["2", "3.000", "30.0 %", "1.3"]
    assert sum(int(row[0]) for row in found.values()) == len(CALLS)


def test_the_step_in_words():
    text = str(REPORT)
    assert "takes 30.000 ms" in text
    assert "2 x 10.000 ms in the passes of a shard, 9 kernel calls" in text
    assert "5.000 ms in the optimizer's update (20.0 %)" in text


def test_the_page_draws_both_phases():
    page = REPORT.html
    assert "&#x27;&lt;b&gt;&#x27;" in page or "&lt;b&gt;" in page
    assert "<b>' (Linear)" not in page
    assert "backward" in page
