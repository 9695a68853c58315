"""A float model of your own: quantized, measured layer by layer, verified, compiled to C.

Shows:  what a PyTorch user does after training: calibrate on a loader, see what 8 bits cost and
        where, and get C with the same bits as PyTorch.
Needs:  the extra `demo` (its digits) and a C compiler.
Run:    python examples/own_torch_model.py
Prints: figures that differ a little between machines, as training in float32 does

    float32: 96.94 % of the test digits right
    signal to quantization noise, dB: Input 48, Conv 39, Swish 37, Conv 37, Tanh 35, Add 37 ...
    integers: 96.66 %, the same class as float32 for 358 of 359
    on torch, c: same bits: True
    C in build/examples/own_torch_model/c: 5,976 bytes of constants, 2,544 bytes of RAM
"""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits as sb
from samebits.data import load
from samebits.errors import SamebitsError

OUT = Path("build/examples/own_torch_model")


class Net(nn.Module):
    """Any module that torch.export can trace, with Python in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.out = nn.Linear(16 * 16, 10)

    def forward(self, x):
        x = nn.functional.silu(self.norm(self.first(x)))
        x = x + torch.tanh(self.second(x))
        return self.out(nn.functional.avg_pool2d(x, 2).flatten(1))


def main() -> None:
    """Train in float32, quantize, verify, compile."""
    digits = load("digits")  # or tensors of your own
    images, labels = digits.values(digits.train_images), digits.train_labels
    tests, answers = digits.values(digits.test_images), digits.test_labels

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for batch, wanted in (pair for _ in range(3) for pair in loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), wanted).backward()
        optimizer.step()
    with torch.no_grad():
        said = model.eval()(tests).argmax(1)
    print(f"float32: {100 * (said == answers).float().mean():.2f} % of the test digits right")

    net = sb.quantize(model, calibration=loader)  # print(net.report()) shows every tensor
    ratios = [f"{tensor.op} {tensor.sqnr_db:.0f}" for tensor in net.quantization.tensors]
    print("signal to quantization noise, dB:", ", ".join(ratios[:6]), "...")
    (logits,) = net.run(tests, "torch").values()
    accuracy = (logits.argmax(1) == answers.numpy()).mean()
    same = (logits.argmax(1) == said.numpy()).sum()
    print(f"integers: {100 * accuracy:.2f} %, the same class as float32 for {same} of {len(said)}")

    print("on torch, c: same bits:", net.verify(tests, ["torch", "c"]).same_bits)
    made = net.compile(OUT / "c")
    print(f"C in {OUT / 'c'}: {made.memory.constants:,} bytes of constants, ", end="")
    print(f"{made.memory.arena:,} bytes of RAM")


if __name__ == "__main__":
    try:
        main()
    except SamebitsError as error:  # what is missing here: a sentence, and no traceback
        raise SystemExit(str(error)) from None
