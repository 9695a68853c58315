"""Train within a memory budget: what to keep of the forward pass, and what to compute again.

Shows:  plans for a deep network of densely connected layers, for budgets from everything down to
        the least that is possible; no plan changes a bit of the gradients.
Needs:  samebits alone. Plans are for any torch.nn.Module, in float32 or converted to BFP.
Run:    python examples/recompute_budget.py
Prints: times are a machine's own (these of a busy one) and, in float32, gradients too

    budget   pass holds  computed again  step measured  gradients
    no plan     46.0 MiB           0.0 ms         181 ms  dc011a6d9486c736
    100%        46.0 MiB           0.0 ms         180 ms  dc011a6d9486c736
    80%         36.7 MiB           0.2 ms         136 ms  dc011a6d9486c736
    60%         27.5 MiB           0.7 ms         208 ms  dc011a6d9486c736
    least       23.4 MiB           1.4 ms         205 ms  dc011a6d9486c736
    same gradients: True; a picture of memory over time: build/examples/recompute_budget/least.svg
"""

import hashlib
import time
from pathlib import Path

import torch
from torch import nn

import samebits as sb
from samebits.errors import SamebitsError

OUT = Path("build/examples/recompute_budget")


class Dense(nn.Module):
    """A convolution whose 12 channels join all that it reads (Huang et al. 2017)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 12, 3, padding=1, bias=False)
        )

    def forward(self, x):
        return torch.cat((x, self.body(x)), 1)


def network(depth: int = 16) -> nn.Module:
    """Dense layers for images [3, 32, 32], a pool after every fourth."""
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, padding=1)]
    for layer in range(depth):
        layers += [Dense(24 + 12 * layer)] + [nn.AvgPool2d(2)] * (layer % 4 == 3)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * (24 + 12 * depth), 10))


def loss(output):
    """Some loss."""
    return output.square().mean()


def measured(module: nn.Module, step, images) -> tuple[float, str]:
    """Milliseconds of the fastest of five steps, and the hash of their gradients."""
    times = []
    for _ in range(5):
        module.zero_grad()
        start = time.perf_counter()
        step(images).backward()
        times.append(1000 * (time.perf_counter() - start))
    gradients = b"".join(p.grad.numpy().tobytes() for p in module.parameters())
    return min(times), hashlib.sha256(gradients).hexdigest()


def main() -> None:
    """Plan for some budgets, run a step under each."""
    torch.manual_seed(0)
    module, images = network().train(), torch.rand(16, 3, 32, 32)
    made = sb.plan(module, images, sb.Recomputation(memory_budget="100%"), loss=loss)
    whole, least = made.plan.store_all, made.plan.smallest
    print("budget   pass holds  computed again  step measured  gradients")
    hashes = set()
    for name, budget in {
        "no plan": None,
        "100%": "100%",
        "80%": "80%",
        "60%": "60%",
        "least": least,
    }.items():
        step, peak, again = lambda x: loss(module(x)), whole, 0
        if budget is not None:
            made = sb.plan(module, images, sb.Recomputation(memory_budget=budget), loss=loss)
            step, peak, again = made.step, made.plan.peak, made.plan.recompute_ps
        taken, sha256 = measured(module, step, images)
        hashes.add(sha256)
        row = f"{peak / 2**20:6.1f} MiB {again / 1e9:13.1f} ms {taken:11.0f} ms"
        print(f"{name:<8}  {row}  {sha256[:16]}")
    OUT.mkdir(parents=True, exist_ok=True)
    picture = made.save_picture(OUT / "least.svg")
    print(f"same gradients: {len(hashes) == 1}; a picture of memory over time: {picture}")


if __name__ == "__main__":
    try:
        main()
    except SamebitsError as error:  # what is missing here: a sentence, and no traceback
        raise SystemExit(str(error)) from None
