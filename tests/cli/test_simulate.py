"""`samebits simulate`, its files, and traces that `samebits audit` compares."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from samebits.cli.simulate import simulate_command
from samebits.errors import InputError
from samebits.npu.machine.image import read_program
from samebits.npu.simulator.simulate import simulate
from samebits.verification.trace import first_parting, read_trace

FIRMWARE = Path(__file__).resolve().parents[2] / "examples" / "firmware"


@pytest.fixture
def inputs(tmp_path):
    path = tmp_path / "x.npz"
    x = np.random.default_rng(3).standard_normal((2, 10, 16)).astype(np.float32)
    np.savez(path, x=x)
    return path


def test_outputs_and_report(inputs, tmp_path, capsys):
    out = tmp_path / "y.npz"
    simulate_command(FIRMWARE / "gru.nnp", inputs, out, as_json=True)
    record = json.loads(capsys.readouterr().out)
    with np.load(inputs) as given, np.load(out) as found:
        result = simulate(*read_program(FIRMWARE / "gru.nnp"), {"x": given["x"]})
        assert found.files == ["y"]
        assert found["y"].dtype == np.float16
        assert found["y"].tolist() == result.outputs["y"].tolist()
    assert record["outputs"] == {"y": [2, 10, 20]}
    assert record["tile_products"] == result.counts.products == 10 * 18
    assert record["multiply_adds"] == 180 * 16 * 16
    assert [chain["executions"] for chain in record["chains"]] == [10] * 7

    first = out.read_bytes()
    simulate_command(FIRMWARE / "gru.nnp", inputs, out)
    text = capsys.readouterr().out
    assert text.startswith(
        f"Simulation of {FIRMWARE / 'gru.nnp'}\n\ny: [2, 10, 20]\n"
        "70 chains and 46,080 multiply-adds a sample\n"
    )
    assert text.endswith(f"\nwritten: {out}\n")
    assert out.read_bytes() == first


def test_trace_is_one_that_audit_reads(inputs, tmp_path):
    traces = [tmp_path / "a.json", tmp_path / "b.json"]
    for trace in traces:
        simulate_command(FIRMWARE / "gru.nnp", inputs, tmp_path / "y.npz", trace)
    first, second = (read_trace(trace) for trace in traces)
    assert first_parting(first, second) is None
    assert len(first["layers"]) == 70

    with np.load(inputs) as given:
        x = given["x"]
    x[1, 4, 0] += 1
    np.savez(inputs, x=x)
    simulate_command(FIRMWARE / "gru.nnp", inputs, tmp_path / "y.npz", traces[1])
    parting = first_parting(first, read_trace(traces[1]))
    assert parting.run == 1
    assert parting.layer.endswith(", execution 5")
    assert parting.differing == 1


def test_folder(inputs, tmp_path):
    folder = tmp_path / "compiled"
    folder.mkdir()
    out = tmp_path / "y.npz"
    message = f"{folder}: expected one .nnp program in the folder, found none; name the program"
    with pytest.raises(InputError) as caught:
        simulate_command(folder, inputs, out)
    assert str(caught.value) == message
    for suffix in (".nnp", ".safetensors"):
        shutil.copy(FIRMWARE / f"gru{suffix}", folder)
    simulate_command(folder, inputs, out)
    assert out.exists()
    shutil.copy(FIRMWARE / "gru.nnp", folder / "again.nnp")
    with pytest.raises(InputError, match=r"found 'again\.nnp', 'gru\.nnp'; name the program"):
        simulate_command(folder, inputs, out)


def test_bad_input_names_file_and_shape(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros((3, 16)))
    with pytest.raises(InputError) as caught:
        simulate_command(FIRMWARE / "gru.nnp", path, tmp_path / "y.npz")
    assert str(caught.value) == (
        "gru.nnp:17: input 'x': expected shape [10, 16], or a batch [B, 10, 16], found [3, 16]"
    )
    assert not (tmp_path / "y.npz").exists()
