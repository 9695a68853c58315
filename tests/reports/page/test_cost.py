"""The card of the cost: bars beside a board's memory, and times by a clock."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import nn

import samebits as sb
from samebits.codegen.run.requirements import Requirements, requirements
from samebits.codegen.run.targets import TARGETS
from samebits.errors import InputError
from samebits.reports.html import Figures
from samebits.reports.page.cost import Meter, Meters, clock_hz, cost_section, milliseconds


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return sb.quantize(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(64, 4)
    )


def blocks(net, needs=(), totals=None, clock="", cpu="portable"):
    return cost_section(net.model.integer, [], 90, cpu, needs, totals or {}, clock).blocks


@pytest.mark.parametrize(
    ("text", "hertz"),
    [("64MHz", 64 * 10**6), ("1.5 GHz", 15 * 10**8), ("32768hz", 32768), ("8khz", 8000)],
)
def test_clocks(text, hertz):
    assert clock_hz(text) == Fraction(hertz)


@pytest.mark.parametrize("text", ["64", "0MHz", "MHz", "-1MHz", "1e3Hz", "9999GHz", "64 M Hz"])
def test_wrong_clocks(net, text):
    with pytest.raises(InputError, match="--clock: expected a clock such as 64MHz, found '"):
        net.report(board="cortex-m3", clock=text)


def test_a_clock_needs_a_board(net):
    with pytest.raises(InputError, match="--clock 64MHz: expected --board, whose instructions"):
        net.report(clock="64MHz")


def test_a_time_is_instructions_by_the_clock(net):
    assert milliseconds(64_000, Fraction(64 * 10**6)) == "1"
    assert milliseconds(1_704_083, Fraction(64 * 10**6)) == "26.6"
    found = blocks(net, totals={"cortex-m3": 6400}, clock="64MHz")
    (figures,) = [block for block in found if isinstance(block, Figures)]
    assert ("instructions", "6,400", "on cortex-m3") in figures.items
    assert ("time", "0.1 ms", "at 64MHz on cortex-m3, an estimate") in figures.items
    assert any("A time is an estimate" in getattr(block, "text", "") for block in found)
    plain = blocks(net, totals={"cortex-m3": 6400})
    assert not any("estimate" in str(block) for block in plain)


def test_bars_beside_a_board():
    meter = Meter("Flash of x", 300, 200, "code")
    assert meter.words == "300 of 200 bytes, 150.0 %, code: too many"
    assert replace(meter, used=50).words == "50 of 200 bytes, 25.0 %, code"
    assert replace(meter, used=50).share == 0.25


def test_bounds_without_a_build(net):
    (meters,) = [block for block in blocks(net) if isinstance(block, Meters)]
    board = TARGETS["cortex-m0"].board
    assert [(m.used, m.size) for m in meters.items[:1]] == [(90, board.flash.bytes)]
    assert meters.items[1].size == board.ram.bytes
    assert not any(isinstance(block, Meters) for block in blocks(net, cpu=None))


def test_boards_that_were_not_measured_say_why(net):
    found = blocks(net, [Requirements("cortex-m3", why="no <compiler>")])
    assert any(getattr(b, "text", "") == "cortex-m3: not measured: no <compiler>" for b in found)


@pytest.mark.slow
def test_measured_bytes_are_those_of_compile(net, tmp_path):
    made = net.compile(tmp_path / "c", sizes=True)
    for need in made.targets:
        if need.why is not None:
            pytest.skip(need.why)
        assert need == requirements(net.model.integer, need.target)
        page = net.report(board=need.target, clock="64MHz").html
        board = TARGETS[need.target].board
        total = net.profile(need.target).total
        assert f"{need.flash:,} of {board.flash.bytes:,} bytes" in page
        assert f"{need.ram + need.stack:,} of {board.ram.bytes:,} bytes" in page
        assert f"<b>{total:,}</b>" in page
        assert f"<b>{milliseconds(total, clock_hz('64MHz'))} ms</b>" in page
        assert f"{need.flash:,} of {board.flash.bytes:,} bytes" in made.report().html
