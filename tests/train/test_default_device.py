"""A default device or type of the caller's around training decides nothing (`kernels.memory`).

In a process of its own, whose tables are made first where the defaults are foreign: C was once
given addresses of tensors without memory, which ends a process.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMON = """
import contextlib, sys, warnings
import torch
import samebits.train as bt
from torch import nn

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.norm = nn.LSTM(4, 3, batch_first=True), nn.LayerNorm(3)
        self.last = nn.Linear(3, 2)
    def forward(self, x):
        return self.last(self.norm(self.lstm(x)[0])[:, -1])

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.25, batch_first=True)
        self.last = nn.Linear(4, 2)
    def forward(self, x):
        return self.last((self.layer(x) * 0.3).flip(1).mean(1))

def image():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(4, 4, 3, groups=4), nn.Sigmoid(),
        nn.Dropout(0.25), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2),
    )

MODELS = {"image": image, "recurrent": Recurrent, "attention": Attention}
SHAPES = {"image": (6, 2, 8, 8), "recurrent": (6, 5, 4), "attention": (6, 5, 4)}

def result(make, x, y, exponents, optimizer, **options):
    model = bt.convert(make, exponents=exponents)
    used = optimizer(model.parameters(), lr=0.01, seed=1, **options)
    average = bt.EMA(model, decay=0.5)
    losses = []
    for step in range(3):
        bt.set_step(model, seed=0, step=step, shard=0)
        z = model(bt.model_input(model, x))
        loss = bt.cross_entropy(z, y) + bt.mse_loss(z, z.detach().dequantize().float() * 0.5)
        loss.backward()
        bt.clip_grad_norm_(model.parameters(), 0.5)
        used.step()
        used.zero_grad()
        average.update()
        losses.append(loss)
    model.eval()
    with torch.no_grad(), average.applied():
        out = model(bt.model_input(model, x))
    states = [*model.state_dict().values(), *average.state_dict().values()]
    return [*losses, out.codes, out.dequantize(), out.log_softmax(1).dequantize(), *states]

@contextlib.contextmanager
def default(device, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)

def main(name, exponents):
    torch.manual_seed(0)
    model = MODELS[name]()
    x, y = torch.randn(SHAPES[name]), torch.arange(6) % 2
    for optimizer, options in ((bt.SGD, {"momentum": 0.9}), (bt.Adam, {"weight_decay": 0.01})):
        found = []
        for device, dtype in (
            ("meta", torch.float32), ("cpu", torch.float32), ("cpu", torch.float64),
            ("meta", torch.float16),
        ):
            with default(device, dtype):
                found.append(result(model, x, y, exponents, optimizer, **options))
        with torch.device("meta"):
            found.append(result(model, x, y, exponents, optimizer, **options))
        for other in found:
            for a, b in zip(found[1], other, strict=True):
                assert a.device.type == b.device.type == "cpu", (a.device, b.device)
                assert a.dtype == b.dtype, (a.dtype, b.dtype)
                assert torch.equal(a, b), (a, b)
    print("the same", len(found[0]))

for case in sys.argv[1:]:
    main(*case.split())
"""


@pytest.mark.parametrize(
    "cases",
    [  # each network makes its tables where the default is foreign
        ("image tensor", "recurrent tensor", "attention row-shift"),
        *(
            pytest.param((case,), marks=pytest.mark.slow)
            for case in (
                *("recurrent tensor", "attention row-shift", "attention tensor", "image row"),
                *("image row-shift", "recurrent row", "recurrent row-shift"),
            )
        ),
    ],
)
def test_training_is_the_same_under_any_default(cases):
    command = [sys.executable, "-W", "error", "-c", COMMON, *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("the same ") == len(cases)
