"""Figures of a page and of a summary are those of the C's own report.json."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

import samebits as sb
from samebits.api import inspect_record


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.nn.functional.gelu(x + self.second(x))
        return torch.softmax(self.head(x.mean((2, 3))), -1)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rows = nn.LayerNorm(8), nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.rows(self.norm(x)).chunk(3, -1)
        return torch.softmax(q @ k.transpose(1, 2), -1) @ v


NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), nn.Sigmoid()), (4,)),
    "lines": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 8, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
        ),
        (3, 16),
    ),
    "images": (Residual, (3, 8, 8)),
    "lstm": (lambda: nn.LSTM(6, 16, batch_first=True), (10, 6)),  # cubics in place of tables
    "attention": (Attending, (4, 8)),
}


@pytest.fixture(scope="module", params=sorted(NETS))
def net(request):
    torch.manual_seed(0)
    make, shape = NETS[request.param]
    return sb.quantize(make().eval(), torch.randn(32, *shape), sb.Calibration(floor="none"))


def shown(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, pattern
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("cpu", ["portable", "cortex-m4"])
def test_a_page_says_what_the_report_of_the_c_says(net, cpu, tmp_path):
    made = net.compile(tmp_path / "c", sb.Packaging(cpu=cpu), sizes=False)
    stated = json.loads((tmp_path / "c/report.json").read_text())
    pages = [made.report(), sb.load(tmp_path / "c").report()]
    for page in [*pages, net.report()] if cpu == "portable" else pages:
        text = shown(page.html)
        assert number(r" layers ([\d,]+) ", text) == len(stated["layers"])
        assert (
            number(r" constants ([\d,]+) bytes in C ", text) == stated["weights"] + stated["tables"]
        )
        assert number(r" arena ([\d,]+) bytes ", text) == stated["arena"]
        assert number(r" stack ([\d,]+) bytes at most", text) == stated["stack_cortex_m"]
        tables = re.search(r"tables of ([\d,]+) bytes in C;", text)
        assert (int(tables[1].replace(",", "")) if tables else 0) == made.tables.bytes


def test_a_summary_says_it_too_or_names_a_bound(net, tmp_path):
    """Cubics, which take seconds to fit, are counted as the tables that they stand for."""
    net.compile(tmp_path / "c", sizes=False)
    stated = json.loads((tmp_path / "c/report.json").read_text())
    text = str(net.report())
    constants = stated["weights"] + stated["tables"]
    assert number(r"layers: (\d+)", text) == len(stated["layers"])
    assert number(r"_LAYERS (\d+)", (tmp_path / "c/model.h").read_text()) == len(stated["layers"])
    bound = re.search(r"constants: at most ([\d,]+) bytes in C", text)
    if bound:
        assert int(bound[1].replace(",", "")) >= constants
    else:
        assert number(r"constants: ([\d,]+) bytes in C", text) == constants
    held = inspect_record(tmp_path / "c")["c"]
    assert held["exact"] == (bound is None)
    assert held["layers"] == len(stated["layers"])
    assert not held["exact"] or held["weights"] + held["tables"] == constants
