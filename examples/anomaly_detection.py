"""A machine that sounds wrong: an autoencoder whose error is computed in integers.

Shows:  the network gives its own reconstruction error, so that the score, the threshold and the
        alarm on the device are the integers that were tested here.
Needs:  a C compiler.
Run:    python examples/anomaly_detection.py
Prints: figures that differ a little between machines, as training in float32 does

    area under the curve, healthy from broken: 0.997 in float32, 0.997 in integers
    threshold: 13,508, in codes from -32,768 to 32,767; 99 % of the healthy are below
    alarms: 1.6 % of the healthy, 97.0 % of the broken
    1,000 scores on torch, c; same bits: True
    C: 3,370 bytes of constants, 96 bytes of RAM
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import samebits as sb
from samebits.errors import SamebitsError

OUT = Path("build/examples/anomaly_detection")
BANDS = np.arange(32)
RNG = np.random.default_rng(0)


def spectra(count: int, broken: bool = False) -> torch.Tensor:
    """Vibration of a machine in 32 bands: two peaks that move with its speed; a broken bearing
    adds a third one, anywhere above them."""
    speed, load = RNG.uniform(0.5, 1.5, (2, count, 1))
    x = speed * np.exp(-(((BANDS - 8 * speed - 2) / 3) ** 2))
    x += load * np.exp(-(((BANDS - 16 * speed) / 4) ** 2))
    if broken:
        place, height = RNG.uniform(20, 30, (count, 1)), RNG.uniform(0.3, 0.6, (count, 1))
        x += height * np.exp(-(((BANDS - place) / 1.5) ** 2))
    return torch.from_numpy((x + RNG.normal(0, 0.05, x.shape)).astype(np.float32))


class Error(nn.Module):
    """The mean squared error with which a narrow network rebuilds its input."""

    def __init__(self) -> None:
        super().__init__()
        inside = nn.Sequential(nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 4))
        self.rebuild = nn.Sequential(inside, nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 32))

    def forward(self, x):
        return (self.rebuild(x) - x).square().mean(1, keepdim=True)


def main() -> None:
    """Train on healthy machines, find broken ones."""
    torch.manual_seed(0)
    train, healthy, broken = spectra(2000), spectra(500), spectra(500, broken=True)
    model = Error()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in train.split(64) * 40:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()

    # Healthy machines alone are known: a score beyond all of theirs saturates, above the threshold.
    net = sb.quantize(model.eval(), train, sb.Formats(output_bits=16))
    tests = torch.cat((healthy, broken))
    (codes,) = net.run(tests, "torch", codes=True).values()
    with torch.no_grad():
        floats = model(tests).numpy()
    print(f"area under the curve, healthy from broken: {area(floats):.3f} in float32, ", end="")
    print(f"{area(codes):.3f} in integers")
    (known,) = net.run(train, "torch", codes=True).values()
    threshold = int(np.quantile(known, 0.99))
    print(
        f"threshold: {threshold:,}, in codes from -32,768 to 32,767; 99 % of the healthy are below"
    )
    alarms = 100 * (codes > threshold).reshape(2, 500).mean(1)
    print(f"alarms: {alarms[0]:.1f} % of the healthy, {alarms[1]:.1f} % of the broken")

    checked = net.verify(tests, ["torch", "c"])
    print(f"{checked.samples:,} scores on torch, c; same bits: {checked.same_bits}")
    memory = net.compile(OUT / "c").memory
    print(f"C: {memory.constants:,} bytes of constants, {memory.arena:,} bytes of RAM")


def area(scores) -> float:
    """How often a broken machine scores higher than a healthy one; equal scores count half."""
    healthy, broken = scores.reshape(2, 500)
    return float((np.sign(broken[:, None] - healthy.astype(float)).mean() + 1) / 2)


if __name__ == "__main__":
    try:
        main()
    except SamebitsError as error:  # what is missing here: a sentence, and no traceback
        raise SystemExit(str(error)) from None
