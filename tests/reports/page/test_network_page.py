"""The page of a network as a whole: what it says for every kind and every option."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from samebits.codegen.run.targets import TARGETS
from samebits.codegen.run.toolchain import find
from samebits.errors import InputError
from samebits.ir.figures import graph_sha256


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


SAMPLES = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def net():
    return sb.quantize(module(), SAMPLES)


@pytest.fixture(scope="module")
def file(net, tmp_path_factory):
    return net.save(tmp_path_factory.mktemp("page") / "net.onnx")


def titles(page):
    return re.findall(r'<h2 id="[^"]*">([^<]*)</h2>', page)


def test_what_this_session_quantized_has_its_losses(net):
    """Samples of the calibration, and the float network, are at hand."""
    page = net.report().html
    assert "Nothing was compared for this page." in page
    assert "Measured on 8 samples. SQNR is against the float network" in page
    assert "weights rounded" in page
    assert graph_sha256(net.model.integer) in page
    assert titles(page) == [
        *("How good?", "The same bits?", "What it costs"),
        *("The graph", "Layer by layer", "Memory over time", "Weights"),
        *("Tables of functions", "What quantization cost"),
    ]


def test_samples_give_a_verdict_and_losses(file):
    report = sb.report(file, "random:5")
    assert "same bits: yes" in str(report)
    page = report.html
    assert re.search(r"The same bits: reference, torch.* computed 15 outputs of 5 samples", page)
    assert "random:5 --backends torch" in page  # the file is there
    assert "Rounding of weights is not among the causes" in page


def test_a_file_alone_says_what_is_missing(file):
    page = sb.report(file).html
    assert f"samebits report {file} --data random:100 --out page.html" in page
    assert "nothing is said of errors and ranges" in page
    assert "SQNR, dB" not in page


def test_against_the_float_network(file, tmp_path):
    sb.load(module(), example=SAMPLES[:1]).save(tmp_path / "float.onnx")
    np.savez(tmp_path / "x.npz", input=SAMPLES[:10].numpy())
    options = {"against": tmp_path / "float.onnx"}
    page = sb.report(file, tmp_path / "x.npz", **options).html
    assert "SQNR is against the float network" in page
    assert "weights rounded" in page


def test_a_verification_is_not_made_again(net, monkeypatch):
    verified = net.verify("random:3", ["torch"])
    monkeypatch.setattr(sb.Network, "verify", None)
    report = net.report(verified=verified, saved="here/net.onnx")
    assert "computed 9 outputs of 3 samples" in report.html


def test_a_verification_keeps_its_seed(net):
    verified = net.verify("random:3", ["torch"], seed=4)
    assert "network.verify('random:3', ['torch'], seed=4)" in html.unescape(
        net.report(verified=verified).html
    )
    with pytest.raises(InputError, match="--seed 9: expected none beside `verified`"):
        net.report(verified=verified, seed=9)


def test_instructions_of_a_board(file):
    target = TARGETS["cortex-m3"]
    page = sb.report(file, board="cortex-m3").html
    missing = find("arm-none-eabi-gcc").path is None or find("qemu-system-arm").path is None
    if missing:
        assert "Instructions on cortex-m3 were not counted" in page
    else:
        assert "instructions, cortex-m3" in page
    assert target.board
    with pytest.raises(InputError, match=r"--board: expected one of .*, found 'abacus'"):
        sb.report(file, board="abacus")


def test_float_networks_have_a_graph_and_weights():
    net = sb.load(module(), example=SAMPLES[:1])
    page = net.report().html
    assert titles(page) == [
        *("The same bits?", "What it costs", "The graph", "Layer by layer", "Weights")
    ]
    assert "A float network has no bits to compare" in page
    with pytest.raises(InputError, match="--data applies to a quantized network"):
        net.report("random:1")


def test_options_that_do_not_apply_are_refused(net, file, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with pytest.raises(InputError, match="samples does not apply"):
        sb.report(plan, "random:1")
    with pytest.raises(InputError, match="seed does not apply to such a source, found 3"):
        sb.report(plan, seed=3)
    with pytest.raises(InputError, match=r"--seed 3: expected samples random:N, .* found others"):
        sb.report(file, SAMPLES[:4], seed=3)
    with pytest.raises(
        InputError, match="--target: expected samples that are read with it, found none; give"
    ):
        sb.report(file, sb.read(None, target="y"))
    with pytest.raises(InputError, match=r"--against: expected a float network, found .*quantized"):
        sb.report(file, "random:1", against=file)
    with pytest.raises(InputError, match="--against needs samples, found none"):
        sb.report(file, against=sb.load(module(), example=SAMPLES[:1]))


def test_names_of_files_are_escaped():
    """Nodes and values of an untrusted file may be called anything."""
    from samebits.ir import GraphBuilder

    builder = GraphBuilder("g")
    x = builder.input("<img src=x>", "float32", (1, 4))
    w = builder.constant("w", np.ones((4, 4), np.float32))
    y = builder.add("MatMul", (x, w), name="<script>alert(1)</script>", outputs=("</svg>\x1b",))
    page = sb.load(builder.build([y])).report().html
    assert "<img" not in page
    assert "<script>alert" not in page
    assert "&lt;img src=x&gt;" in page
    assert "&lt;/svg&gt;\\x1b" in page
    assert "\x1b" not in page


def test_samples_that_can_be_read_once(file):
    batches = [SAMPLES[:2], SAMPLES[2:4]]
    assert sb.report(file, iter(batches)).html == sb.report(file, batches).html


def test_samples_are_read_once(file):
    """They are verified and measured; a file of others is named."""
    read = []

    class Batches(list):
        def __iter__(self):
            read.append(1)
            return super().__iter__()

    sb.report(file, Batches([SAMPLES[:2]]))
    assert read == [1]
    with pytest.raises(InputError, match=r"wrong\.npz: input 'input': expected shape"):
        sb.report(file, _archive(file.parent / "wrong.npz"))


def _archive(path):
    np.savez(path, x=np.zeros((2, 5), np.float32))
    return path


def test_the_input_has_a_row(net):
    """With its format and what it loses; it is no layer."""
    page = net.report().html
    (row,) = re.findall(r'<tr id="input-1".*?</tr>', page, flags=re.DOTALL)
    assert '<b>input</b><span class="more">input</span>' in row
    assert "int8, scale 0.0" in row
    assert " %" in row
    layers = page.count('<tr id="layer-')
    assert f"{layers} layers in the order of computation" in page
    float_page = sb.load(module(), example=SAMPLES[:1]).report().html
    assert "float32" in re.findall(r'<tr id="input-1".*?</tr>', float_page, flags=re.DOTALL)[0]


def test_a_network_without_an_integer_form_has_a_page():
    from samebits.ir import GraphBuilder

    builder = GraphBuilder("g")
    scale = builder.constant("s", np.float32(0.1)), builder.constant("z", np.int8(0))
    codes = builder.add("QuantizeLinear", [builder.input("x", "float32", (1, 4)), *scale])
    y = builder.add("Erf", [builder.add("DequantizeLinear", [codes, *scale])])
    page = sb.load(builder.build([y])).report().html
    assert "It has no integer form, so its graph is shown as it was read" in page


def test_rounding_of_inputs_counts(net, file, tmp_path):
    """The same samples lose the same whether the page was asked for with the calibration at hand
    or with a file of them."""
    sb.load(module(), example=SAMPLES[:1]).save(tmp_path / "float.onnx")
    np.savez(tmp_path / "x.npz", input=SAMPLES.numpy())
    page = sb.report(file, tmp_path / "x.npz", against=tmp_path / "float.onnx").html

    def table(text):
        return re.findall(r'<tr id="[^"]*" tabindex="-1">.*?</tr>', text, flags=re.DOTALL)

    assert any(" dB" in row or "activations rounded" in row for row in table(page))
    assert table(page) == table(net.report().html)


def test_weights_that_are_not_finite():
    """A float network is shown as it is, so that one can see what is wrong with it."""
    net = module()
    with torch.no_grad():
        weight = next(p for p in net.parameters() if p.ndim > 1)
        weight.view(-1)[:2] = torch.tensor([float("nan"), float("inf")])
    page = sb.load(net, example=SAMPLES[:1]).report().html
    assert "2 not finite" in page
