"""Valid files of every target, from which its corpus is made: a few hundred bytes to a few KiB."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import random
import struct
import tempfile
import wave
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from fuzzing import lite, models
from fuzzing.mutations import archive_of, join_files
from samebits.codegen.packaging.package import write_package
from samebits.model import Model
from samebits.npu.machine.image import read_program
from samebits.npu.machine.words import to_words
from samebits.recompute.network.sublayer import PassNetwork, SubLayer
from samebits.recompute.plan.cost import device_text, find_device
from samebits.recompute.plan.plan import write_plan
from samebits.recompute.plan.planner import make_plan
from samebits.train.deployed.deploy import Exponents, FrozenSite
from samebits.train.run.checkpoint import Checkpoint, write_checkpoint
from samebits.train.run.config import TrainConfig
from samebits.train.run.record import FORMAT as RUN
from samebits.train.run.trace import FORMAT
from samebits.verification.inputs import random_codes
from samebits.verification.registry import backend_named
from samebits.verification.trace import to_record
from tiny_models import quantized_file, quantized_graph

FIRMWARE = Path(__file__).resolve().parents[2] / "examples" / "firmware"
SMALL = ("average_pool", "conv1x1", "gru")  # programs whose images are small


def onnx() -> Iterator[bytes]:
    """Models of all kinds of operators."""
    for make in (
        *(models.convolutional, models.quantized, models.shaping, models.nested),
        *(models.classical, models.trees, models.few_bits),
    ):
        yield bytes(make().SerializeToString())
    with tempfile.TemporaryDirectory() as folder:
        yield quantized_file(Path(folder) / "q.onnx").read_bytes()


def tflite() -> Iterator[bytes]:
    """Networks of most kinds of operators, in floats and in codes of all widths."""
    yield from lite.seeds()


def strange_folder() -> Iterator[bytes]:
    """Lines of which each replaces an entry of a run folder."""
    yield from (b"result.json none\n", b"metrics.jsonl none\nresult.json none\n", b"\n")
    yield b"checkpoint-00000001.safetensors pipe\nconfig.json 1\n"


def strange_data() -> Iterator[bytes]:
    """The kind of a folder, and what replaces its entries."""
    for name in ("images", "recordings", "masks", "tables", "saved", "flat", "network"):
        yield f"{name}\ntrain/a/0.png none\n".encode()


def bomb() -> Iterator[bytes]:
    """Small ones of every kind."""
    yield from (b"picture PNG L 100 100", b"picture WEBP RGB 200 100", b"picture JPEG L 90 80")
    yield from (b"masks 100 100", b"array uint8 int64 100 10", b"sound 4000 1")
    yield from (b"constant Expand 100", b"table 300 100 100", b"text 10000", b"constant Range 64")


def firmware() -> Iterator[bytes]:
    """A program and its image."""
    for name in SMALL:
        path = FIRMWARE / f"{name}.nnp"
        yield join_files([path.read_bytes(), path.with_suffix(".safetensors").read_bytes()])


def assembly() -> Iterator[bytes]:
    """All programs of the examples."""
    for path in sorted(FIRMWARE.glob("*.nnp")):
        yield path.read_bytes()


def binary() -> Iterator[bytes]:
    """The same in binary form."""
    for path in sorted(FIRMWARE.glob("*.nnp")):
        found = to_words(read_program(path)[0])
        yield struct.pack(f"<{len(found)}I", *found)


def checkpoint() -> Iterator[bytes]:
    """States of runs, finished or not; none of a whole network, which would be large."""
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(-127, 128, (4, 3), dtype=torch.int8, generator=generator)
    tensors = {
        "0.weight.codes": codes,
        "0.weight.delayed": torch.full((4, 3), -7, dtype=torch.int16),
        "0.weight.exponent": torch.tensor(-9),
        "1.running_mean": torch.tensor([0.1, 1e-300], dtype=torch.float64),
    }
    group = {"lr": 0.1, "betas": (0.9, 0.999), "nesterov": False, "fused": None, "params": [0]}
    momentum = {"momentum": torch.arange(5, dtype=torch.int16), "exponent": -4, "t": 2}
    sites = Exponents((FrozenSite("input", -7), FrozenSite("0 (Linear)", 3)))
    for arch, exponents in (("mlp", sites), ("cnn", None)):
        config = TrainConfig(data="digits", arch=arch, epochs=1).to_dict()
        state = Checkpoint(
            3,
            tensors,
            {"state": {0: momentum, 1: {}}, "param_groups": [group]},
            {**config, "input_shape": [1, 8, 8], "classes": 10, "rate": None},
            {"epoch": 1, "loss_sum": 2.0**-1074},
            exponents,
        )
        with tempfile.TemporaryDirectory() as folder:
            yield write_checkpoint(Path(folder), state).read_bytes()


def run() -> Iterator[bytes]:
    """What a run writes beside its checkpoints: config.json, metrics.jsonl and result.json."""
    config = {
        "format": RUN,
        **TrainConfig(data="digits", arch="mlp").to_dict(),
        "data_sha256": "00",
    }
    metrics = [{"step": 8 * n, "epoch": n, "loss": 1 / n, "accuracy": 0.5} for n in (1, 2, 3)]
    result = {"format": RUN, "accuracy": 0.5, "sha256": "00" * 32, "seconds": 1.5}
    lines = "".join(json.dumps(record) + "\n" for record in metrics)
    yield join_files([json.dumps(config).encode(), lines.encode(), json.dumps(result).encode()])


def npz() -> Iterator[bytes]:
    """Data sets of images, split and not."""
    numbers = np.random.default_rng(1)
    grey = numbers.integers(0, 256, (10, 2, 3), dtype=np.uint8)
    colour = numbers.random((6, 2, 2, 3), dtype=np.float32)
    labels = np.arange(10) % 3
    yield _archive({"x": grey, "y": labels})
    parts = {"x_train": colour, "y_train": labels[:6].astype(np.uint8)}
    yield _archive({**parts, "x_test": colour[:2], "y_test": labels[:2, None], "more": grey})


def _archive(arrays: dict[str, np.ndarray]) -> bytes:
    members = []
    for name, array in arrays.items():
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
        members.append((f"{name}.npy", stream.getvalue()))
    return archive_of(members)


def wav() -> Iterator[bytes]:
    """Recordings of one and two channels, one with an extended header."""
    samples = (np.random.default_rng(2).integers(-9000, 9000, 900)).astype("<i2")
    for rate, channels in ((8000, 1), (16000, 2)):
        stream = io.BytesIO()
        with wave.open(stream, "wb") as sound:
            sound.setnchannels(channels)
            sound.setsampwidth(2)
            sound.setframerate(rate)
            sound.writeframes(samples.tobytes())
        data = stream.getvalue()
        yield data
    extended = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 8000, 16000, 2, 16, 22, 16, 4)
    extended += bytes.fromhex("0100000000001000800000aa00389b71")
    body = b"WAVEfmt " + struct.pack("<I", len(extended)) + extended
    body += b"data" + struct.pack("<I", 1000) + samples.tobytes()[:1000]
    yield b"RIFF" + struct.pack("<I", len(body)) + body


def image() -> Iterator[bytes]:
    """PNG and JPEG images of several modes."""
    numbers = np.random.default_rng(3)
    for mode, shape in (("L", (5, 4)), ("RGB", (4, 4, 3)), ("RGBA", (3, 2, 4)), ("P", (3, 5))):
        picture = Image.fromarray(numbers.integers(0, 256, shape, dtype=np.uint8), mode[:4])
        yield _encoded(picture, "PNG")
    for mode, shape in (("L", (9, 9)), ("RGB", (8, 17, 3))):
        picture = Image.fromarray(numbers.integers(0, 256, shape, dtype=np.uint8), mode)
        yield _encoded(picture, "JPEG")


def _encoded(picture: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind)
    return stream.getvalue()


def text() -> Iterator[bytes]:
    """Texts of few and of all bytes."""
    yield b"same bits everywhere\n" * 40
    yield b"\xef\xbb\xbf" + bytes(range(256)) * 3


def csv() -> Iterator[bytes]:
    """Tables of numbers and words, for classes and for a regression."""
    rng = random.Random(4)
    kinds = ("red", "green", "deep blue")
    rows = [(rng.randrange(9), rng.random(), kinds[i % 3], "ab"[i % 2]) for i in range(24)]
    head = "count,size,colour,kind"
    yield "\n".join((head, *(f"{a},{b:.3f},{c},{d}" for a, b, c, d in rows))).encode()
    yield "\r\n".join(("x,y", *(f"{b:.5e},{a / 8}" for a, b, _, _ in rows))).encode()


def trace() -> Iterator[bytes]:
    """Traces with codes and without."""
    model = Model("tiny", quantized_graph())
    runs = backend_named("reference").trace(model, random_codes(model.integer, 2))
    record = to_record(model, "tiny.onnx", "reference", runs)
    yield json.dumps(record).encode()
    yield json.dumps({key: value for key, value in record.items() if key != "codes"}).encode()


def training_trace() -> Iterator[bytes]:
    """Three steps of two layers."""
    counter = itertools.count(1)

    def hashes(count: int) -> list[str]:
        return [f"{next(counter):016x}" for _ in range(count)]

    names = {"layers": ["a", "b"], "parameters": ["a.bias", "a.weight"]}
    head = {"format": FORMAT, "run": {"lr": 0.1, "seed": 3}, "step": 0, "state": hashes(2), **names}
    lines = [json.dumps(head)]
    for step in (1, 2, 3):
        shards = [
            {"outputs": hashes(2), "loss": hashes(1)[0], "gradients": [None, *hashes(1)]}
            for _ in range(2)
        ]
        lines.append(json.dumps({"step": step, "shards": shards, "state": hashes(2)}))
    yield "".join(f"{line}\n" for line in lines).encode()


def plan() -> Iterator[bytes]:
    """A plan of four sub-layers, of both orders of the backward pass."""
    layers = (
        SubLayer("input", "input", shape=(4, 25), size=100, differentiable=False),
        SubLayer("conv", "Conv2d", (0,), (100,), 100, needs=(0,), operations=5000),
        SubLayer("norm", "any", (1,), (100,), 100, needs=(1,), operations=300),
        SubLayer("relu", "any", (2,), (100,), 100, needs=(3,), operations=100),
        SubLayer("out", "any", (3,), (10,), 10, needs=(3,), operations=50),
    )
    device = find_device("cortex-m7")
    for backward in ("sequential", "paired"):
        made = make_plan(
            PassNetwork(layers, len(layers) - 1),
            device,
            arch="mlp",
            backward=backward,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            write_plan(path, made)
            yield path.read_bytes()


def device() -> Iterator[bytes]:
    """Devices of the package, as `samebits device` writes them."""
    for name in ("cortex-m7", "laptop-cpu"):
        yield device_text(find_device(name)).encode()


def package() -> Iterator[bytes]:
    """The report of a package of C."""
    with tempfile.TemporaryDirectory() as folder:
        write_package(Model("tiny", quantized_graph()).integer, Path(folder) / "c")
        yield (Path(folder) / "c" / "report.json").read_bytes()


class _Small(nn.Module):
    """A layer, a buffer and two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("offset", torch.ones(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"z": torch.relu(self.linear(x)) + self.offset, "s": y.sum(0)}


class _Quantized(nn.Module):
    """Codes of x, and weights of few bits as PT2E writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.tensor([[1, -2, 3], [4, 5, -6]], dtype=torch.int8))
        self.register_buffer("scales", torch.tensor([0.5, 0.25]))
        self.register_buffer("zeros", torch.tensor([0, 1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        op = torch.ops.quantized_decomposed
        x = op.quantize_per_tensor(x, 0.1, 3, -7, 7, torch.int8)
        x = op.dequantize_per_tensor(x, 0.1, 3, -7, 7, torch.int8)
        numbers = (self.scales, self.zeros, 0, -7, 7, torch.int8)
        w = op.dequantize_per_channel(self.codes, *numbers)
        y: torch.Tensor = nn.functional.linear(x, w)
        return y


def pt2() -> Iterator[bytes]:
    """Exported programs, without the members that are not read."""
    torch.manual_seed(0)
    yield _exported(_Small().eval(), torch.rand(2, 3), torch.rand(2))
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # defines the operators
    yield _exported(_Quantized().eval(), torch.rand(2, 3))


def _exported(module: nn.Module, *inputs: torch.Tensor) -> bytes:
    program = torch.export.export(module, inputs)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    with zipfile.ZipFile(stream) as archive:
        members = [(m.filename, archive.read(m)) for m in archive.infolist()]
    kept = [m for m in members if "sample_inputs" not in m[0] and ".format" not in m[0]]
    made = []
    for name, data in kept:
        if name.endswith("models/model.json"):
            record = json.loads(data)
            for node in record["graph_module"]["graph"]["nodes"]:
                node["metadata"] = {}  # stack traces with the paths of this machine
            data = json.dumps(record).encode()
        made.append((name, data))
    return archive_of(made)
