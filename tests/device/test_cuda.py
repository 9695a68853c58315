"""The same bits on a GPU: kernels against the CPU, and a whole training run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compare import assert_same
from samebits.data import Dataset
from samebits.kernels import conv_shape, selftest
from samebits.kernels.eager import Eager
from samebits.numerics import philox, realise
from samebits.numerics.catalog import FORMATS
from samebits.spec.formats import Q8, Q16, Q32
from samebits.train import SGD, Adam, BFPTensor, convert, cross_entropy, set_step
from samebits.train.architectures import build, initialise
from samebits.train.run.checkpoint import list_checkpoints, parameter_sha256
from samebits.train.run.config import TrainConfig
from samebits.train.run.device import DEVICES, run_device
from samebits.train.run.loop import train

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adamw": lambda p: Adam(p, lr=0.002, weight_decay=0.01, decoupled=True),
}


def integers(shape: tuple[int, ...], high: int, dtype: torch.dtype, seed: int) -> Tensor:
    count = torch.Size(shape).numel()
    return (philox.words(count, (seed, 0)) % (2 * high + 1) - high).view(shape).to(dtype)


def check(on_gpu: Tensor, on_cpu: Tensor) -> None:
    """Equal integers; a mismatch shows flat positions."""
    assert_same(on_gpu.cpu(), on_cpu, torch.arange(on_cpu.numel()))


def test_selftest() -> None:
    assert selftest.failures(Eager(), "cuda") == []


def test_kernels_in_triton_give_the_cpus_bits(tmp_path: Path) -> None:
    """Steps of three networks, replayed as CUDA graphs; in a process that compiles kernels."""
    script = Path(__file__).parents[2] / "benchmarks" / "bench_gpu.py"
    given = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, script, "--seconds", "0", "--out", tmp_path / "record.json"],
        capture_output=True, text=True, check=False, timeout=900, env=given,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equals the CPU") == 3


@pytest.mark.parametrize("geometry", [(1, 1, 1, 1), (2, 1, 1, 1), (1, 1, 2, 2), (2, 2, 1, 8)])
def test_convolution_equals_cpu(geometry: tuple[int, int, int, int]) -> None:
    stride, padding, dilation, groups = geometry
    x = integers((3, 8, 11, 9), Q8, torch.int8, 1)
    w = integers((16, 8 // groups, 3, 3), Q8, torch.int8, 2)
    pairs = ((stride,) * 2, (padding,) * 2, (dilation,) * 2)
    s = conv_shape(tuple(x.shape), tuple(w.shape), *pairs, groups)
    eager = Eager()
    acc = eager.conv(x, w, s)[0]
    check(eager.conv(x.cuda(), w.cuda(), s)[0], acc)
    for high, dtype in ((Q16, torch.int16), (Q32, torch.int32)):
        g = integers(tuple(acc.shape), high, dtype, 3)
        expected = eager.conv_weight_grad(g, x, s)[0]
        check(eager.conv_weight_grad(g.cuda(), x.cuda(), s)[0], expected)
    g = integers(tuple(acc.shape), Q16, torch.int16, 4)
    expected = eager.conv_input_grad(g, w, s)[0]
    check(eager.conv_input_grad(g.cuda(), w.cuda(), s)[0], expected)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_quantize_equals_cpu(name: str) -> None:
    words = philox.words(4096, (9, 9))
    x = ((words.double() * 2.0**-31 - 1.0) * 2.0 ** (words % 41 - 20).double()).float()
    x = x.view(8, 512)
    on_cpu, on_gpu = (
        realise.quantize_real(x, FORMATS[name]),
        realise.quantize_real(x.cuda(), FORMATS[name]),
    )
    assert_same(on_gpu.codes.cpu(), on_cpu.codes, x)
    assert_same(on_gpu.dequantize().cpu(), on_cpu.dequantize(), x)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("arch", ["cnn", "resnet8", "mobilenetv2", "lstm"])
def test_training_equals_cpu(arch: str, optimizer: str) -> None:
    assert trained(arch, optimizer, "cuda") == trained(arch, optimizer, "cpu")


def test_a_run_equals_that_on_the_cpu(tmp_path: Path) -> None:
    """With its trace and checkpoints; and it goes on on the other device."""
    words = philox.words(72 * 36, (1, 7)) % 256
    images, labels = words.view(72, 1, 6, 6).to(torch.uint8), torch.arange(72) % 3
    data = Dataset(images[:48], labels[:48], images[48:], labels[48:], ("a", "b", "c"), "made")
    config = TrainConfig(data="made", arch="resnet8", epochs=2, batch=16, shards=2, lr=0.05)
    results = []
    for name in DEVICES:
        out, trace = tmp_path / name, tmp_path / f"{name}.jsonl"
        results.append(train(config, data, out, device=run_device(name), trace=trace))
    assert results[0].sha256 == results[1].sha256
    assert results[0].correct == results[1].correct
    assert (tmp_path / "cpu.jsonl").read_text() == (tmp_path / "cuda.jsonl").read_text()
    here, there = (list_checkpoints(tmp_path / name) for name in DEVICES)
    assert [path.read_bytes() for path in here] == [path.read_bytes() for path in there]
    for name, other in (DEVICES, DEVICES[::-1]):
        list_checkpoints(tmp_path / name)[-1].unlink()
        resumed = train(config, data, tmp_path / name, device=run_device(other), resume=True)
        assert resumed.sha256 == results[0].sha256


def test_workers_with_a_gpu_each_equal_one_on_the_cpu(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    found = []
    for device, start in (("cpu", ()), ("cuda", launcher)):
        command = [sys.executable, *start, "-m", "samebits", "train", "--data", "digits", "--json"]
        command += ["--arch", "resnet8", "--epochs", "1", "--limit", "32", "--device", device]
        command += ["--out", str(tmp_path / device)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout)["sha256"])
    assert found[0] == found[1]


def trained(arch: str, optimizer: str, device: str) -> str:
    """SHA-256 of the parameters after 20 steps of two shards."""
    model = build(arch, (3, 32, 32), 10)
    model = nn.Sequential(model)
    initialise(model, 3)
    twin = convert(model).to(device)
    update = OPTIMIZERS[optimizer](twin.parameters())
    words = philox.words(16 * 3 * 32 * 32, (1, 2))
    images = (words.double() * 2.0**-31 - 1.0).float().view(16, 3, 32, 32).to(device)
    labels = (philox.words(16, (3, 4)) % 10).to(device)
    for step in range(20):
        for shard in range(2):
            at = slice(8 * shard, 8 * shard + 8)
            set_step(twin, 5, step, shard)
            (cross_entropy(twin(BFPTensor.from_real(images[at])), labels[at]) / 2).backward()
        update.step()
        update.zero_grad()
    return parameter_sha256({k: v.cpu() for k, v in twin.state_dict().items()})
