"""Tables beside their functions: every entry within half a step, saturated ones told apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from samebits.reports.html import Figure
from samebits.reports.page.tables import table_curves, tables_section


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 3))
    return sb.quantize(module, torch.randn(64, 4))


def test_entries_are_the_function_rounded_once(net):
    curves = table_curves(net.model.integer, net.model.real)
    assert len(curves) == 2
    for curve in curves:
        assert curve.x.shape == curve.entries.shape == curve.function.shape == (256,)
        inside = (curve.entries > curve.entries.min()) & (curve.entries < curve.entries.max())
        assert np.abs(curve.error[inside]).max() <= 0.5 + 1e-9
    tanh = next(curve for curve in curves if "Tanh" in curve.says)
    assert tanh.function == pytest.approx(np.tanh(tanh.x), abs=1e-12)


def test_states_of_a_recurrent_network():
    torch.manual_seed(0)
    step = sb.quantize(nn.LSTM(3, 4, batch_first=True), torch.randn(8, 5, 3))
    curves = table_curves(step.model.integer, step.model.real)
    assert sorted(curve.says for curve in curves) == ["Sigmoid", "Tanh", "Tanh"]
    assert len({name for curve in curves for name in curve.names}) == 5


def test_the_section_draws_each(net):
    section = tables_section(net.model.integer, net.model.real, False)
    captions = [block.caption for block in section.blocks if isinstance(block, Figure)]
    assert len(captions) == 2
    assert all("steps from the function" in caption for caption in captions)


def test_where_the_function_is_unknown_the_entries_are_shown(net):
    """An integer graph alone does not say what its tables stand for."""
    integer = net.model.integer
    (first, _) = table_curves(integer, integer)
    assert first.function is None
    section = tables_section(integer, integer, False)
    assert "the real function is not in this file" in section.blocks[1].caption


def test_no_tables_no_section():
    torch.manual_seed(0)
    net = sb.quantize(nn.Linear(4, 3), torch.randn(8, 4))
    assert tables_section(net.model.integer, net.model.real, False) is None
