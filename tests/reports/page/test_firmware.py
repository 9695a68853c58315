"""Chains of programs: what each waits for, how much of a tile is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import samebits as sb
from samebits.npu.machine.check import check
from samebits.npu.simulator.counts import count
from samebits.reports.page.firmware import ChainFacts, _utilisation, chain_facts, firmware_sections

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "firmware"
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.nnp"))


def chains_of(name):
    net = sb.load(EXAMPLES / f"{name}.nnp")
    program, image = net.model.program, net.model.image
    statements = check(program, image)
    return program, statements, chain_facts(program, image, statements)


@pytest.mark.parametrize("name", PROGRAMS)
def test_chains_add_up_to_the_program(name):
    program, statements, chains = chains_of(name)
    work = count(statements, program.native)
    assert sum(chain.executions for chain in chains) == work.executions
    assert sum(chain.products for chain in chains) == work.products
    assert all(before < chain.place for chain in chains for before in chain.after)


def test_an_lstm_waits_for_its_gates():
    """Lines of the program: its gates are read by what multiplies them."""
    _, _, chains = chains_of("lstm")
    assert chains[0].title == "move"
    assert [chain.after for chain in chains[1:5]] == [(0,)] * 4
    last = chains[-1]
    assert last.title == "v_tanh vv_mul"
    assert {chains[before].title for before in last.after} == {"vv_add", "mv_mul vv_add v_sigm"}


def test_utilisation_is_what_is_not_padding():
    """40 x 20 weights in 3 x 2 tiles of 16 x 16, 40 x 40 in 3 x 3."""
    _, _, chains = chains_of("lstm")
    used = {chain.used for chain in chains if chain.used is not None}
    assert used == {40 * 20 / (6 * 256), 40 * 40 / (9 * 256)}


@pytest.mark.parametrize(
    ("convolution", "products"),
    [
        (nn.Conv2d(1, 16, 3), 16 * 9 * 36),  # in 9 columns of tiles, one lane of 16 used
        (nn.Conv2d(8, 8, 3, groups=8), 8 * 9 * 36),  # tiles hold zeros between groups
    ],
)
def test_utilisation_of_a_page_is_the_networks_share_of_the_work(tmp_path, convolution, products):
    torch.manual_seed(0)
    channels = convolution.out_channels
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 16))
    net = sb.load(
        nn.Sequential(convolution, nn.ReLU(), *head).eval(),
        example=torch.rand(1, convolution.in_channels, 8, 8),
    )
    made = net.compile(tmp_path, sb.Accelerator(native_dim=16), target="npu")
    figures = firmware_sections(sb.load(made.path).model, None)[0].blocks[1]
    values = {what: value for what, value, _ in figures.items}
    total = int(values["multiply-adds"].replace(",", ""))
    assert values["utilisation"] == f"{100 * (products + 16 * channels) / total:.1f} %"


def test_utilisation_is_unknown_where_tiles_are_loaded_at_run_time():
    """Nothing is said of a whole program of which one chain is not known."""
    chains = [ChainFacts(0, 1, "", "", 1, 10, 1.0, ()), ChainFacts(1, 2, "", "", 1, 1, None, ())]
    assert _utilisation(chains[:1]) == 1.0
    assert _utilisation(chains) is None
    assert _utilisation([]) is None


def test_the_sections_of_a_page():
    net = sb.load(EXAMPLES / "gru.nnp")
    sections = firmware_sections(net.model, None)
    assert [section.title for section in sections] == [
        *("The same bits?", "What waits for what", "Chains", "Memories and ports"),
    ]
    table = sections[2].blocks[1]
    boxes = sections[1].blocks[1].boxes
    assert {box.item.key for box in boxes} == set(table.keys)
    assert len(table.rows) == len(table.keys)
