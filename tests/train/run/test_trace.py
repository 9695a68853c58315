"""Traces of training: what is in them, and that they do not change a run."""

import hashlib
import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from samebits import kernels
from samebits.data import Dataset
from samebits.errors import InputError, UnsupportedError
from samebits.numerics import philox
from samebits.train import BFPTensor
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import train
from samebits.train.run.trace import Recorder, tensor_hash


def data():
    words = philox.words(72 * 36, (1, 7)) % 256
    images, labels = words.view(72, 1, 6, 6).to(torch.uint8), torch.arange(72) % 3
    return Dataset(images[:48], labels[:48], images[48:], labels[48:], ("a", "b", "c"), "made")


DATA = data()


def config(**changes):
    options = {"data": "made", "arch": "cnn", "epochs": 2, "batch": 16, "shards": 2, "lr": 0.05}
    return TrainConfig(**{**options, **changes})


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def expected_hash(data, exponent=None):
    """The hash of bytes, from its definition."""
    keys = philox.words(1024, (0, 0)).tolist()
    sums = []
    for start in range(0, len(data), 4096):
        block = data[start : start + 4096].ljust(4096, b"\0")
        words = [w + k for w, k in zip(np.frombuffer(block, "<u4").tolist(), keys, strict=True)]
        pairs = zip(words[:512], words[512:], strict=True)
        sums.append(sum((a % 2**32) * (b % 2**32) for a, b in pairs) % 2**64)
    text = b"" if exponent is None else exponent.to_bytes(8, "little", signed=True)
    text += len(data).to_bytes(8, "little") + b"".join(s.to_bytes(8, "little") for s in sums)
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("shape", [(2, 3, 4, 2), (1, 64, 9, 9), (5, 7), (1,)])
def test_hash_is_of_codes_and_exponent_in_any_memory_order(dtype, shape):
    count = int(np.prod(shape))
    codes = (philox.words(count, (3, 4)) - 2**31).to(dtype).view(shape)
    rows = codes.permute(0, 2, 3, 1) if len(shape) == 4 else codes
    data = rows.contiguous().numpy().astype(f"<i{codes.element_size()}").tobytes()
    expected = expected_hash(data, -5)
    for tensor in (codes, codes.clone(memory_format=torch.preserve_format)):
        assert tensor_hash(BFPTensor(tensor, -5)) == expected
    if len(shape) == 4:
        last = codes.contiguous(memory_format=torch.channels_last)
        assert tensor_hash(BFPTensor(last, -5)) == expected
    with kernels.use("eager"):
        assert tensor_hash(BFPTensor(codes, -5)) == expected
    assert tensor_hash(BFPTensor(codes, -4)) != expected
    assert tensor_hash(codes) == expected_hash(data)
    other = codes.clone()
    other.view(-1)[count // 2] ^= 1
    assert tensor_hash(other) != tensor_hash(codes)


def test_hash_of_floats():
    values = torch.tensor([1.5, -0.0, float("inf")])
    assert tensor_hash(values) == expected_hash(values.numpy().astype("<f4").tobytes())
    assert tensor_hash(torch.tensor(1.5)) == expected_hash(b"\0\0\xc0\x3f")
    assert tensor_hash(torch.zeros(0)) == expected_hash(b"")


@pytest.mark.parametrize("numerics", ["bfp", "float32"])
def test_trace_of_a_run(tmp_path, numerics):
    options = config(numerics=numerics)
    plain = train(options, DATA, tmp_path / "plain")
    traced = train(options, DATA, tmp_path / "run", trace=tmp_path / "t.jsonl")
    assert traced.sha256 == plain.sha256
    header, *steps = lines(tmp_path / "t.jsonl")
    assert header["run"]["lr"] == 0.05
    assert header["step"] == 0
    assert header["layers"][0] == "0.0"
    assert len(header["layers"]) == 14
    assert [record["step"] for record in steps] == list(range(1, 7))
    for record in steps:
        assert len(record["shards"]) == (2 if numerics == "bfp" else 1)
        assert len(record["state"]) == len(header["parameters"]) == len(header["state"])
        for shard in record["shards"]:
            assert len(shard["outputs"]) == len(shard["gradients"]) == len(header["layers"])
            assert None not in [*shard["outputs"], shard["loss"], *shard["gradients"]]
    assert header["state"] != steps[0]["state"]


def test_resumed_trace_is_that_of_the_whole_run(tmp_path):
    train(config(), DATA, tmp_path / "whole", trace=tmp_path / "whole.jsonl")
    cut = tmp_path / "cut.jsonl"
    train(config(), DATA, tmp_path / "run", trace=cut)
    for name in ("checkpoint-00000006.safetensors", "result.json"):
        (tmp_path / "run" / name).unlink()  # as if it had ended after the first epoch
    text = cut.read_text()
    cut.write_text(text[: len(text) - 50])
    train(config(), DATA, tmp_path / "run", resume=True, trace=cut)
    assert cut.read_text() == (tmp_path / "whole.jsonl").read_text()


@pytest.mark.parametrize("earlier", ["", "{}\n", '{"format": 1}\n', "[" * 9999, "\x00\n", "lr"])
def test_other_files_are_replaced_on_resume(tmp_path, earlier):
    """The trace then begins with the state of the checkpoint."""
    path = tmp_path / "t.jsonl"
    if earlier == "lr":
        train(config(lr=0.1), DATA, tmp_path / "other", trace=path)
    else:
        path.write_text(earlier)
    train(config(), DATA, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-00000006.safetensors").unlink()
    train(config(), DATA, tmp_path / "run", resume=True, trace=path)
    header, *steps = lines(path)
    assert header["step"] == 3
    assert [record["step"] for record in steps] == [4, 5, 6]


def test_a_trace_of_another_version_is_not_replaced_on_resume(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"format": "samebits-training-trace-2"}\n')
    train(config(), DATA, tmp_path / "run")
    message = (
        f"{path}: expected format 'samebits-training-trace-1' of samebits, found "
        "'samebits-training-trace-2'; use the release of samebits that wrote it, or trace again "
        "with: samebits train --trace FILE"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        train(config(), DATA, tmp_path / "run", resume=True, trace=path)
    assert path.read_text() == '{"format": "samebits-training-trace-2"}\n'


def test_layers_in_another_order_are_refused(tmp_path):
    model = nn.Sequential(nn.Identity(), nn.Identity())
    recorder = Recorder(model)
    for _ in range(2):
        with recorder.forward_pass():
            model(torch.ones(1))
        recorder.shard_ends(torch.tensor(1.0))
    assert recorder.take().shape == (2, 5)
    with recorder.forward_pass():
        model[0](torch.ones(1))
    with pytest.raises(UnsupportedError, match="found 1 instead of 2"):
        recorder.shard_ends(torch.tensor(1.0))


def test_what_is_computed_outside_of_the_forward_pass_is_not_heard():
    model = nn.Linear(2, 2)
    recorder = Recorder(model)
    with recorder.forward_pass():
        loss = model(torch.ones(1, 2)).sum()
    model(torch.ones(1, 2))
    loss.backward()
    recorder.shard_ends(loss)
    (row,) = recorder.take().tolist()
    assert row[2] == tensor_hash(torch.ones(1, 2))  # the gradient of a sum
    assert len(row) == 3


def test_trace_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"cannot be written .* give another --trace"):
        train(config(), DATA, tmp_path / "run", trace=tmp_path / "no" / "t.jsonl")
