"""From `net.pt` and a folder of pictures to firmware, in one command.

Shows:  `samebits ship`: weights as torch.save writes them, a file that builds their network, and
        pictures in a folder for each class are all that it takes. It quantizes, compares all bits
        of PyTorch, ONNX and C, and writes an Arduino library with a page about it. The weights are
        a file that can be replaced without the code.
Needs:  the extra `demo` (its digits, ONNX) and a C compiler.
Run:    python examples/pictures_to_firmware.py
Prints: figures that differ a little between machines, as training in float32 does

    wrote net.pt, net.py and 300 pictures
    samebits ship net.py:make --data pictures --package arduino --weights-file --out firmware
    same bits: True, on 4 backends
    right: 96.8 % of the pictures for testing
    an Arduino library: 3,048 bytes of weights, 112 of RAM
"""

import contextlib
import shutil
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import samebits as sb
from samebits.data import load
from samebits.errors import SamebitsError

OUT = Path("build/examples/pictures_to_firmware")
COMMAND = (
    "samebits ship net.py:make --data pictures --package arduino --weights-file --out firmware"
)
NET = '''"""Builds the network of net.pt."""

import torch
from torch import nn


def make():
    layers = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    net = nn.Sequential(*layers)
    net.load_state_dict(torch.load("net.pt", weights_only=True))
    return net
'''


def have() -> None:
    """What a user has before: trained weights, the file that builds their network, pictures."""
    digits = load("digits")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        logits = net(digits.values(digits.train_images))
        nn.functional.cross_entropy(logits, digits.train_labels).backward()
        optimizer.step()
    torch.save(net.state_dict(), "net.pt")
    Path("net.py").write_text(NET)
    pairs = zip(digits.test_images[:300], digits.test_labels[:300].tolist(), strict=True)
    for number, (image, label) in enumerate(pairs):
        folder = Path("pictures", str(label))
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (image[0] * (255 / digits.peak)).round().to(torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{number:03}.png")
    print("wrote net.pt, net.py and 300 pictures")


def main() -> None:
    """Ship it: COMMAND on the command line does what the call of `ship` does."""
    print(COMMAND)
    made = sb.ship("net.py:make", "pictures", "firmware", package="arduino", weights_file=True)
    compared = [verdict.backend for verdict in made.verification.verdicts if not verdict.skipped]
    print(f"same bits: {bool(made)}, on {len(compared) + 1} backends")
    accuracy = sb.evaluate(made.network, "pictures").accuracy
    print(f"right: {100 * accuracy:.1f} % of the pictures for testing")
    memory = made.compiled.memory
    print(f"an Arduino library: {memory.weights:,} bytes of weights, {memory.arena:,} of RAM")


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    with contextlib.chdir(OUT):
        have()
        try:
            main()
        except SamebitsError as error:  # what is missing here: a sentence, and no traceback
            raise SystemExit(str(error)) from None
