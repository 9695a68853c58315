"""Runs that start from given weights (`--init`)."""

import re

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import samebits as sb
from given_options import called
from samebits import api
from samebits.errors import CheckpointError, InputError
from samebits.spec import formats
from samebits.train.architectures import build, initialise
from samebits.train.run.checkpoint import list_checkpoints, parameter_sha256, read_checkpoint
from samebits.train.run.initial import initial_weights

FIT = {"epochs": 1, "limit": 8, "batch": 16, "lr": 0.0}  # the weights stay as they start


def twin(dtype=torch.float32):
    """The state of a float network of digits, of another seed than a run's."""
    model = build("mlp", (1, 8, 8), 10)
    initialise(model, 9)
    return {name: value.to(dtype) for name, value in model.state_dict().items()}


def final(out):
    return read_checkpoint(list_checkpoints(out)[-1]).model


def silent(text):
    raise AssertionError(text)


def assert_starts_from(model, state):
    """The integers of a BFP model are those of the real values that it started from."""
    for name, value in state.items():
        codes, delayed, exponent = formats.initial_weight(value.double().flatten().tolist())
        assert model[f"{name}.codes"].flatten().tolist() == codes
        assert model[f"{name}.delayed"].flatten().tolist() == delayed
        assert int(model[f"{name}.exponent"]) == exponent


def test_a_bfp_run_starts_from_a_float_state(tmp_path):
    state = twin()
    run = called(api.fit, data="digits", arch="mlp", out=tmp_path / "dict", **FIT, init=state)
    assert_starts_from(final(tmp_path / "dict"), state)
    save_file(state, tmp_path / "net.safetensors")
    file = called(
        api.fit,
        data="digits",
        arch="mlp",
        out=tmp_path / "file",
        **FIT,
        init=tmp_path / "net.safetensors",
    )
    assert file.result.sha256 == run.result.sha256


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_are_taken_exactly(tmp_path, dtype):
    state = twin(dtype)
    save_file(state, tmp_path / "net.safetensors")
    found = initial_weights(tmp_path / "net.safetensors", "bfp", silent)
    assert all(value.dtype == torch.float32 for value in found.values())
    called(
        api.fit,
        data="digits",
        arch="mlp",
        out=tmp_path / "out",
        **FIT,
        init=tmp_path / "net.safetensors",
    )
    assert_starts_from(final(tmp_path / "out"), state)


@pytest.mark.parametrize("numerics", ["float32", "bfp"])
def test_a_run_starts_from_another_one(tmp_path, numerics):
    first = tmp_path / "first"
    api.fit(
        "digits",
        "mlp",
        first,
        sb.Numerics(numerics="float32"),
        sb.Training(seed=4, epochs=2, limit=8, batch=16),
    )
    whole = called(
        api.fit, data="digits", arch="mlp", out=tmp_path / "a", **FIT, numerics=numerics, init=first
    )
    (*_, newest) = list_checkpoints(first)
    file = called(
        api.fit,
        data="digits",
        arch="mlp",
        out=tmp_path / "b",
        **FIT,
        numerics=numerics,
        init=newest,
    )
    assert whole.result.sha256 == file.result.sha256
    if numerics == "float32":
        assert whole.result.sha256 == parameter_sha256(final(first))
    again = called(
        api.fit, data="digits", arch="mlp", out=tmp_path / "c", **FIT, init=tmp_path / "a"
    )
    if numerics == "bfp":  # delayed updates included
        assert again.result.sha256 == whole.result.sha256


def test_the_weights_are_part_of_a_runs_identity(tmp_path):
    called(api.fit, data="digits", arch="mlp", out=tmp_path / "out", **FIT, init=twin())
    other = twin()
    other["1.bias"] += 1
    for init in (None, other):
        with pytest.raises(CheckpointError, match="another run: init_sha256: expected"):
            called(
                api.fit,
                data="digits",
                arch="mlp",
                out=tmp_path / "out",
                **FIT,
                resume=True,
                init=init,
            )
    called(
        api.fit, data="digits", arch="mlp", out=tmp_path / "out", **FIT, resume=True, init=twin()
    )


def test_weights_of_another_network_are_refused(tmp_path):
    state = twin()
    state["1.weight"] = state["1.weight"][:, 1:]
    with pytest.raises(CheckpointError, match=r"(?s)^init: not the state of this model.*1\.weight"):
        called(api.fit, data="digits", arch="mlp", out=tmp_path / "out", **FIT, init=state)
    assert not (tmp_path / "out").exists()


def file_of(folder, what):
    """A file, or none, that is no state dict."""
    if what == "pickle":
        torch.save(twin(), folder / "net.pt")
        return folder / "net.pt"
    path = folder / "net.safetensors"
    if what == "empty":
        path.write_bytes(b"")
    elif what == "cut":
        save_file(twin(), path)
        path.write_bytes(path.read_bytes()[:-1])
    elif what == "dtype":
        save_file(twin(), path)
        path.write_bytes(path.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"X32"'))
    return path


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("missing", InputError, "no such file or folder"),
        ("pickle", InputError, "found a file ending in .pt; write .* with safetensors"),
        ("empty", InputError, r"damaged one \(truncated: expected at least 9 bytes, found 0"),
        ("cut", InputError, r"damaged one \(truncated or extended.*; write or download it again"),
        ("dtype", InputError, "expected a .safetensors file of weights, found a damaged one"),
    ],
)
def test_other_files_are_refused(tmp_path, what, error, text):
    path = file_of(tmp_path, what)
    with pytest.raises(error, match=f"^{re.escape(str(path))}: .*{text}"):
        initial_weights(path, "bfp", silent)


def test_a_state_of_something_else_than_tensors_is_refused():
    with pytest.raises(InputError, match=r"^init: 'a': expected a tensor, found int"):
        initial_weights({"a": 1}, "bfp", silent)
    assert isinstance(
        initial_weights(nn.Linear(2, 2).state_dict(), "bfp", silent)["bias"], torch.Tensor
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor([1.0, float("nan")]), "expected finite numbers, found NaN or infinity"),
        (torch.ones(2, dtype=torch.complex64), "expected real numbers or integers, found torch.c"),
        (torch.ones(2).to(torch.float8_e4m3fn), "real numbers or integers, found torch.float8"),
        (torch.ones(2).to_sparse(), r"found torch.float32 \(torch.sparse_coo\)"),
    ],
)
def test_numbers_that_no_parameter_has_are_refused(value, text):
    with pytest.raises(InputError, match=rf"^init: 'a': .*{text}"):
        initial_weights({"a": value}, "bfp", silent)


def test_integers_do_not_start_a_float32_run():
    with pytest.raises(InputError, match="expected real values for a float32 run"):
        initial_weights({"a.codes": torch.ones(2, dtype=torch.int8)}, "float32", silent)
