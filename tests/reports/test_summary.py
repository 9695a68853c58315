"""Summaries of everything that samebits writes: the lines, the JSON data, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from hand_package import write_package as write_hand_package
from recompute_nets import make
from samebits.codegen import write_package
from samebits.data import Dataset
from samebits.errors import CheckpointError, InputError
from samebits.excerpt import Excerpt
from samebits.files import write_atomically
from samebits.ir import GraphBuilder
from samebits.model import Model, load
from samebits.onnx import save_qdq
from samebits.quantization import quantize_recurrent
from samebits.recompute.plan.cost import device_text, find_device
from samebits.recompute.plan.plan import write_plan
from samebits.recompute.plan.planner import make_plan
from samebits.recompute.run.profile import survey
from samebits.reports.facts import PORTS, counted
from samebits.reports.summary import network_summary, summarize, summary_record
from samebits.train.run.config import TrainConfig
from samebits.train.run.loop import train
from samebits.verification.inputs import random_codes
from samebits.verification.registry import backend_named
from samebits.verification.trace import to_record
from tiny_models import float_file, quantized_file, quantized_graph

FIRMWARE = Path(__file__).resolve().parents[2] / "examples" / "firmware"
HASH = re.compile(r"hash ([0-9a-f]{16})\nsha256 \1[0-9a-f]{48}")


def unhashed(path, **options):
    """The summary without its hash, which must be there."""
    text = str(summarize(path, **options))
    assert HASH.search(text)
    return HASH.sub("HASH", text)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    return quantized_file(tmp_path_factory.mktemp("quantized") / "tiny.onnx")


# --- networks -----------------------------------------------------------------------------------


def test_a_quantized_network(quantized):
    assert unhashed(quantized) == (
        f"{quantized}: quantized network\n\n"
        "input x: int8[1, 4], scale 0.0500000007, zero point 3\n"
        "output y: int8[1, 3], scale 0.0625, zero point -5\n"
        "layers: 3 (2 linear, 1 table)\n"
        "constants: 434 bytes in C\n"
        "multiply-adds: 35 in a pass\n"
        "numbers: activations int8 asymmetric or int8 symmetric; weights int8 symmetric; sums "
        "int32\n"
        "tables: 1 (256 bytes in C) for 1 transfer functions\n"
        "HASH"
    )


def test_everything_in_a_quantized_network(quantized):
    text = unhashed(quantized, nodes=True)
    assert text.startswith(unhashed(quantized))
    assert "\n\ngraph tiny\n  input x: float32 1x4\n" in text
    assert "\n\nas integers:\ngraph tiny\n  input x: int8 1x4 (scale" in text
    assert text.endswith("\n  output y")


def test_a_quantized_network_as_data(quantized):
    record = summary_record(quantized)
    assert json.loads(json.dumps(record)) == record
    assert (record["file"], record["kind"], record["quantized"]) == (str(quantized), "graph", True)
    assert record["real"]["operators"]["Gemm"] == 2
    assert record["integer"] == {
        "inputs": ["x: int8[1, 4]"],
        "outputs": ["y: int8[1, 3]"],
        "operators": {"linear": 2, "requantize": 2, "table": 1},
        "constant_bytes": 323,
    }
    assert record["tables"] == {"pairs": 1, "tables": 1, "bytes": 256, "unshared": 256}
    assert record["ports"]["outputs"] == [
        {"name": "y", "dtype": "int8", "shape": [1, 3], "scale": 0.0625, "zero_point": -5}
    ]
    assert (record["multiply_adds"], record["rate"], record["problem"]) == (35, None, None)
    assert f"sha256 {record['sha256']}" in str(summarize(quantized))


def test_a_network_has_its_hash_before_it_is_saved_and_after(quantized):
    summary = network_summary("here", "a kind", Model("tiny", quantized_graph()))
    assert summary.title == "here: a kind"
    assert str(summary).splitlines()[1:] == str(summarize(quantized)).splitlines()[1:]


def test_a_float_network(tmp_path):
    path = float_file(tmp_path / "float.onnx")
    with pytest.raises(InputError, match="--shape x: expected 4 for dimension 1"):
        summarize(path, part=Excerpt(shapes={"x": (2, 5)}))
    text = unhashed(path, part=Excerpt(shapes={"x": (2, 4)}))
    assert text == (
        f"{path}: float network\n\n"
        "input x: float32[2, 4]\n"
        "output y: float32[2, 3]\n"
        "layers: 1 (1 Gemm)\n"
        "constants: 48 bytes\n"
        "multiply-adds: 24 in a pass\n"
        "numbers: float32\n"
        "HASH"
    )
    record = summary_record(path, part=Excerpt(shapes={"x": (2, 4)}))
    assert record["quantized"] is False
    assert "integer" not in record


def test_a_step_graph(tmp_path):
    rng = np.random.default_rng(0)
    b = GraphBuilder("lstm")
    x = b.input("x", "float32", (4, 1, 3))
    shapes = ((1, 8, 3), (1, 8, 2))
    w = [b.constant("w", rng.normal(size=s).astype(np.float32)) for s in shapes]
    graph = b.build([b.add("LSTM", [x, *w], {"hidden_size": 2})])
    samples = [[rng.normal(size=(4, 1, 3)).astype(np.float32)] for _ in range(2)]
    steps, _ = quantize_recurrent(graph, samples)
    save_qdq(steps, tmp_path / "step.onnx")
    text = unhashed(tmp_path / "step.onnx")
    assert re.search(
        r"\nstate \S+: int(8|16)\[.*\], scale .*, zero point .*, zeros at first\n", text
    )
    assert "\na step graph: one step of a sequence, with 2 states\n" in text
    assert f"\nmultiply-adds: {8 * 3 + 8 * 2} in a step\n" in text
    assert [len(ports) for ports in summary_record(tmp_path / "step.onnx")["ports"].values()] == [
        *(1, 1, 2)
    ]
    whole = network_summary("w", "float network", Model("w", graph))
    assert f"\nmultiply-adds: {4 * (8 * 3 + 8 * 2)} in a pass\n" in str(whole)


def test_a_quantized_network_without_integer_form():
    b = GraphBuilder("odd")
    x = b.input("x", "float32", (1, 4))
    s, z = b.constant("s", np.float32(0.5)), b.constant("z", np.int8(0))
    x = b.add("DequantizeLinear", [b.add("QuantizeLinear", [x, s, z]), s, z])
    model = Model("odd", b.build([b.add("Det", [b.add("Reshape", [x], {"shape": (2, 2)})])]))
    text = str(network_summary("odd", "quantized network", model))
    assert "\nno integer form: " in text
    assert HASH.search(text)


def test_many_ports_and_odd_names():
    b = GraphBuilder("many")
    names = [b.input(f"a\x1b[{i}", "float32", (1,)) for i in range(PORTS + 3)]
    text = str(network_summary("m\nany", "float network", Model("m", b.build(names))))
    assert text.splitlines()[0] == "m\\nany: float network"
    assert f"\ninput a\\x1b[{PORTS - 1}: float32[1]\n... and 3 more inputs\n" in text
    assert "\x1b" not in text
    assert counted(f"op{i}" for i in range(12)) == (
        "12 (" + ", ".join(f"1 op{i}" for i in (0, 1, 10, 11, 2, 3, 4, 5, 6, 7)) + ", 2 others)"
    )


def test_an_exported_program(tmp_path):
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.zeros(1, 4),))
    torch.export.save(program, tmp_path / "linear.pt2")
    text = unhashed(tmp_path / "linear.pt2")
    assert text.startswith(f"{tmp_path / 'linear.pt2'}: float network\n\ninput ")
    assert "\nmultiply-adds: 12 in a pass\n" in text


# --- packages and firmware ----------------------------------------------------------------------


def test_a_package_with_its_network(quantized, tmp_path):
    folder = tmp_path / "net"
    write_package(load(quantized).integer, folder)
    alone = str(summarize(folder))
    assert alone.startswith(f"{folder}: package\n\ninput x: int8[1, 4]\noutput y: int8[1, 3]\nC: ")
    assert "requantize" in str(summarize(folder, nodes=True))
    shutil.copy(quantized, folder / "model.onnx")
    text = unhashed(folder)
    assert text.startswith(f"{folder}: quantized network, compiled to C\n\ninput x: int8[1, 4], ")
    assert "\nC: names begin with model; bytes: weights 178, tables 256, arena 32, " in text
    record = summary_record(folder)
    assert record["package"]["format"] == "samebits-package-2"
    assert record["sha256"] == summary_record(quantized)["sha256"]
    report = folder / "report.json"
    with pytest.raises(InputError, match="found a file of a folder; give the folder"):
        summarize(report)
    report.write_text(report.read_text().replace("package-2", "package-0"))
    with pytest.raises(InputError, match="expected format 'samebits-package-2' of samebits"):
        summarize(folder)


def test_a_package_written_by_hand_has_no_report(tmp_path):
    write_hand_package(tmp_path, "*output0 = *input0;")
    with pytest.raises(InputError, match="expected a training output folder, found no checkpoint"):
        summarize(tmp_path)


def test_firmware():
    path = FIRMWARE / "lstm.nnp"
    text = unhashed(path)
    assert text == (
        f"{path}: firmware\n\n"
        "native dimension 16, mantissa 15 bits\n"
        "input x: float16[12, 20]\n"
        "output y: float16[12, 40]\n"
        "instructions: 66 (13 v_wr, 11 end_chain, 11 v_rd, 9 vv_add, 8 mv_mul, 4 s_wr, 3 v_sigm, "
        "3 vv_mul, 2 v_tanh, 1 end_loop, 1 others)\n"
        "memory ivrf: depth 11, 3 in the image (96 bytes)\n"
        "memory asvrf0: depth 27, 12 in the image (384 bytes)\n"
        "memory mvrf1: depth 9, 3 in the image (96 bytes)\n"
        "memory mrf: depth 60, 60 in the image (30,720 bytes)\n"
        "HASH"
    )
    assert "\n\n.native 16\n.mantissa 15\n" in unhashed(path, nodes=True)
    record = summary_record(path)
    assert (record["kind"], record["instructions"], record["native"]) == ("firmware", 66, 16)
    assert (record["inputs"], record["outputs"]) == ({"x": [12, 20]}, {"y": [12, 40]})


def test_firmware_in_a_folder_and_its_image(tmp_path):
    for suffix in (".nnp", ".safetensors"):
        shutil.copy(FIRMWARE / f"gru{suffix}", tmp_path / f"gru{suffix}")
    record = summary_record(tmp_path)
    assert record["sha256"] == summary_record(FIRMWARE / "gru.nnp")["sha256"]
    with pytest.raises(InputError, match=r"the memory image of a program; give gru\.nnp$"):
        summarize(tmp_path / "gru.safetensors")
    image = tmp_path / "gru.safetensors"
    arrays = safetensors.numpy.load_file(image)
    name, array = next(iter(arrays.items()))
    safetensors.numpy.save_file({**arrays, name: array + np.float16(1)}, image)
    assert summary_record(tmp_path)["sha256"] != record["sha256"]


# --- training -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bfp", "float32"])
def run(request, tmp_path_factory):
    """(folder, its trace, result) of a short run."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (40, 1, 6, 6)).astype(np.uint8))
    labels, names = torch.arange(40) % 3, ("a", "b", "c")
    data = Dataset(images[:32], labels[:32], images[32:], labels[32:], names, "made\x1b[1m")
    folder = tmp_path_factory.mktemp("run")
    config = TrainConfig(data="made\x1b[1m", arch="mlp", numerics=request.param, epochs=1, batch=16)
    result = train(config, data, folder / "out", trace=folder / "trace.jsonl")
    return folder / "out", folder / "trace.jsonl", result


def test_a_training_folder(run):
    out, _, result = run
    text = str(summarize(out))
    numerics = "bfp" if "frozen" in text else "float32"
    assert text.startswith(
        f"{out}: training checkpoint\n\n"
        f"checkpoint {out}/checkpoint-00000002.safetensors after step 2, epoch 1 of 1\n"
        f"architecture mlp in {numerics}, input [1, 6, 6], 3 classes\n"
        "trained on made\\x1b[1m (sha256 "
    )
    assert f"\naccuracy {100 * result.accuracy:.2f} % on its test samples\n" in text
    assert re.search(r"\ninput \S+: (int8|float32)\[1, 1, 6, 6\]", text)
    assert re.search(r"\nmultiply-adds: [1-9][\d,]+ in a pass\n", text)
    assert text.endswith(f"\nhash {result.sha256[:16]}\nsha256 {result.sha256}")
    assert 10 < len(text.splitlines()) < 20
    everything = str(summarize(out, nodes=True))
    assert everything.startswith(text)
    assert "\n\ndata made\\x1b[1m\narch mlp\n" in everything
    assert re.search(r"\n *tensor +dtype +shape +exponent\n", everything)


def test_a_checkpoint_as_data(run):
    out, _, result = run
    file = out / "checkpoint-00000002.safetensors"
    record = summary_record(file, arch="mlp")
    assert json.loads(json.dumps(record)) == record
    assert (record["file"], record["kind"], record["step"]) == (str(file), "checkpoint", 2)
    assert (record["sha256"], record["problem"]) == (result.sha256, None)
    assert record["network"]["multiply_adds"] > 1000
    names = [tensor["name"] for tensor in record["tensors"]]
    assert names == sorted(names)
    exponents = {t["name"] for t in record["tensors"] if "exponent" in t}
    assert exponents == {name for name in names if name.endswith(".exponent")}
    assert "accuracy" not in str(summarize(file))
    with pytest.raises(CheckpointError, match="expected the architecture 'cnn', found 'mlp'"):
        summarize(out, arch="cnn")


def test_a_network_of_other_code_is_not_run(run, monkeypatch):
    from samebits.train.run import restore

    read = restore.read_checkpoint

    def other(path):
        checkpoint = read(path)
        checkpoint.config["arch"] = "own:net"
        return checkpoint

    monkeypatch.setattr(restore, "read_checkpoint", other)
    file = run[0] / "checkpoint-00000002.safetensors"
    text = str(summarize(file))
    assert "\nas a network: " in text
    assert "if you trust it, give --arch own:net\n" in text
    assert summary_record(file)["network"] is None


def test_a_training_trace(run):
    _, trace, _ = run
    text = unhashed(trace)
    assert text.startswith(f"{trace}: training trace\n\nof mlp in ")
    assert "\nsteps: 2, from 0 to 2, 1 shards in the last\nlayers: " in text
    record = summary_record(trace)
    assert (record["kind"], record["first_step"], record["last_step"]) == ("training trace", 0, 2)
    last = json.loads(trace.read_text().splitlines()[-1])
    assert list(record["parameters"].values()) == last["state"]
    everything = unhashed(trace, nodes=True)
    assert all(f"\nlayer {name}\n" in everything for name in record["layers"])
    assert everything.count(last["state"][0]) >= 1


# --- plans, devices, traces ---------------------------------------------------------------------


def test_a_plan(tmp_path):
    case = make("resnet8", "bfp")
    _, network = survey(case.model, case.inputs, case.loss)
    options = {"arch": "resnet8", "backward": "sequential"}
    plan = make_plan(network, find_device("laptop-cpu"), budget=None, **options)
    path = tmp_path / "p.json"
    write_plan(path, plan)
    kept = sum(layer.stored for layer in plan.layers)
    text = str(summarize(path))
    assert text.startswith(
        f"{path}: plan\n\n"
        f"for resnet8 in bfp, {plan.samples} samples a pass, on {plan.device}\n"
        "budget: none\n"
        f"results of sub-layers: {kept} kept, {len(plan.layers) - kept} dropped\n"
        "backward pass: sequential\n"
        f"peak {plan.peak:,} bytes ("
    )
    assert "because\n" in str(summarize(path, nodes=True))
    stored = json.loads(path.read_text())
    assert json.loads(json.dumps(summary_record(path))) == {
        "file": str(path),
        "kind": "plan",
        **stored,
    }
    path.write_text(path.read_text().replace("samebits-plan-2", "samebits-plan-7"))
    with pytest.raises(InputError, match="expected 'samebits-plan-2' of samebits, found 'samebits"):
        summarize(path)


def test_a_device(tmp_path):
    path = tmp_path / "mine.toml"
    write_atomically(path, device_text(find_device("cortex-m7")).encode())
    text = str(summarize(path, nodes=True))
    assert text.startswith(f"{path}: device\n\nname ")
    assert re.search(r"\nintegers: [\d,]+ operations per second\nfloats: ", text)
    assert re.search(r"\nmemory .*: [\d,]+ bytes, [\d,]+ bytes per second, latency \d+ ns", text)
    assert summary_record(path)["tiers"][0]["bytes"] > 0
    path.write_text("name = 3")
    with pytest.raises(InputError, match="field tier: expected one or more"):
        summarize(path)


def test_a_trace(tmp_path):
    model = Model("tiny", quantized_graph())
    runs = backend_named("reference").trace(model, random_codes(model.integer, 3))
    record = to_record(model, "tiny\x07.onnx", "reference", runs)
    path = tmp_path / "trace"
    path.write_text(json.dumps(record))
    assert unhashed(path) == (
        f"{path}: trace\n\n"
        "of tiny\\x07.onnx on reference\n"
        "layers: 3 (2 requantize, 1 table)\n"
        "runs: 3\n"
        "codes: of every layer\n"
        "HASH"
    )
    everything = unhashed(path, nodes=True)
    assert re.search(rf"\nh\.codes +requantize +int8\[1, 5\] +{record['runs'][0][0]}\n", everything)
    data = summary_record(path)
    assert (data["kind"], data["runs"], data["codes"]) == ("trace", 3, True)
    del record["codes"]
    path.write_text(json.dumps({**record, "runs": []}))
    assert "\nruns: 0\ncodes: none, hashes only\n" in unhashed(path, nodes=True)


# --- what is none of these ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        ("x.npz", b"PK\x03\x04", "found arrays without a network; samples are given by"),
        ("x", b"", "found a file ending in nothing that states no format"),
        ("x.json", b'{"format": "other-1"}', "found a file ending in .json that states no format"),
        ("x.json", b" " * 2000 + b'{"format": "samebits-plan-2"}', "states no format"),
        (
            "x.json",
            b'{"format": "samebits-unknown-1"}',
            "states no format of samebits; give a file",
        ),
        ("config.json", b'{"format": "samebits-run-1"}', "found a file of a folder; give the"),
        ("x.toml", b"\xff", "not a TOML file"),
        ("x.onnx", b"\xff", "not a readable ONNX file"),
        ("x.nnp", b"\xff", "expected text in UTF-8, found byte 0xFF"),
        ("x.safetensors", b"\xff", "truncated: expected at least 9 bytes, found 1"),
    ],
)
def test_files_that_are_none_of_these(tmp_path, name, data, found):
    path = tmp_path / name
    path.write_bytes(data)
    for examine in (summarize, summary_record):
        with pytest.raises((InputError, CheckpointError)) as caught:
            examine(path)
        assert str(caught.value).startswith(str(path))
        assert found in str(caught.value)


def test_places_that_are_none_of_these(tmp_path):
    expected = (
        "expected an .onnx, .pt2 or .tflite file, an .nnp program, a compiled or training folder, "
        "a .safetensors checkpoint, a plan, a trace, a .toml device file or an image of weights"
    )
    with pytest.raises(InputError) as caught:
        summarize(tmp_path / "none")
    assert str(caught.value) == f"{tmp_path / 'none'}: no such file or folder; {expected}"
    with pytest.raises(InputError, match="found no checkpoint"):
        summarize(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="expected a file, found a pipe"):
        summarize(tmp_path / "pipe")


def test_options_that_do_not_apply(quantized, run, tmp_path):
    device = tmp_path / "mine.toml"
    device.write_text(device_text(find_device("laptop-cpu")))
    for path in (quantized, device):
        with pytest.raises(InputError, match="--arch applies to training folders and checkpoints"):
            summarize(path, arch="mlp")
    for path in (FIRMWARE / "gru.nnp", device, run[0]):
        with pytest.raises(InputError, match="--shape applies to ONNX files, found one for"):
            summarize(path, part=Excerpt(shapes={"x": (1, 4)}))


def test_a_report_of_a_package_is_not_trusted(quantized, tmp_path):
    write_package(load(quantized).integer, tmp_path / "net")
    path = tmp_path / "net" / "report.json"
    report = json.loads(path.read_text())
    for changes in ({"layers": 3}, {"layers": [3, {"name": "\x1b"}]}, {"arena": "\x1b"}):
        path.write_text(json.dumps({**report, **changes, "kind": "other", "prefix": "a"}))
        text = str(summarize(tmp_path / "net", nodes=True))
        assert "\x1b" not in text
        assert summary_record(tmp_path / "net")["kind"] == "package"


def test_the_guide_lists_every_format():
    root = Path(__file__).resolve().parents[2]
    stated = re.compile(r"\bsamebits-[a-z-]+-\d+\b")
    sources = (root / "src" / "samebits").rglob("*.py")
    known = {name for path in sources for name in stated.findall(path.read_text(encoding="utf-8"))}
    table = (root / "docs" / "guide" / "files.md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in table.splitlines() if line.startswith("| "))
    assert known == set(stated.findall(rows))
    assert len(known) == 11
