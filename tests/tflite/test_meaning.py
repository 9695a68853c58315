"""The two meanings of a quantized file: chosen, printed, kept in packages, refused elsewhere."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import samebits as sb
from samebits.errors import InputError, PackageError, UnsupportedError
from samebits.onnx import save_qdq
from samebits.tflite import parse, to_bytes
from tflite_files import image_net

OWN = "tflite:tflm-2026-10"
PRINTED = f"{OWN}, the bits of tflite-micro 0.dev20261013214400 to 0.dev20261023182759"
NAMES = (
    "--meaning: expected exact, tflite (which is tflite:tflm-2026-10), or a version of "
    "tflite:tflm-2026-09, tflite:tflm-2026-10, found "
)


@pytest.fixture
def path(tmp_path):
    """A network up to the scores before its softmax."""
    net, y = image_net(1)
    file = tmp_path / "f.tflite"
    file.write_bytes(net.bytes(next(op.inputs[0] for op in net.operators if op.outputs == (y,))))
    return file


def test_a_meaning_is_chosen(path):
    known = {
        None: "quantized network",
        "exact": "quantized network",
        "tflite": "integer network",
        "tflite:tflm-2026-09": "integer network",
    }
    nets = {meaning: sb.load(path, meaning=meaning) for meaning in known}
    assert {meaning: net.kind for meaning, net in nets.items()} == known
    printed = {meaning: str(net.model.lite.meaning) for meaning, net in nets.items()}
    assert printed == {
        None: "exact, every result rounded once",
        "exact": "exact, every result rounded once",
        "tflite": PRINTED,
        "tflite:tflm-2026-09": "tflite:tflm-2026-09, the bits of tflite-micro 0.dev20260925222358 "
        "to 0.dev20261012203412",
    }
    (x,) = nets["tflite"].inputs
    stated = parse(path.read_bytes(), "f").subgraphs[0].tensors[0].quantization
    assert x.quantization.scale == Fraction(stated.scales[0])


@pytest.mark.parametrize("name", ["tflm", "tflite:", "tflite:tflm-2020-01", "exact:1", "Exact"])
def test_other_meanings(path, name):
    with pytest.raises(InputError) as caught:
        sb.load(path, meaning=name)
    assert str(caught.value) == f"{NAMES}{name!r}"


def test_what_takes_no_meaning(path, tmp_path):
    net = sb.load(path)
    save_qdq(net.model.real, tmp_path / "f.onnx")
    for meaning in ("exact", "tflite"):
        with pytest.raises(
            InputError, match=r"--meaning applies to quantized \.tflite files, found"
        ):
            sb.load(tmp_path / "f.onnx", meaning=meaning)
        with pytest.raises(InputError, match="meaning does not apply to such a source, found"):
            sb.load(net.model.real, meaning=meaning)
    with pytest.raises(InputError, match="--meaning: expected the name of a meaning, found ''"):
        sb.load(path, meaning="")
    floats, y = image_net(1, "float32")
    path.write_bytes(floats.bytes(y))
    with pytest.raises(InputError, match=r"applies to quantized \.tflite files, found a float one"):
        sb.load(path, meaning="exact")
    with pytest.raises(UnsupportedError, match="expected codes of int8 or int16 or uint8 with one"):
        sb.load(path, meaning="tflite")


@pytest.mark.parametrize(
    ("cut", "taken"),
    [
        ({"end_at": "t9"}, ("t0", "t9")),
        ({"start_at": "t10"}, ("t10", "t16")),
        ({"start_at": "t3", "end_at": "t11"}, ("t3", "t11")),
    ],
)
def test_a_part_of_a_network(path, cut, taken):
    """Its codes are those of the whole, and it keeps no other operator."""
    whole, part = sb.load(path, meaning="tflite"), sb.load(path, meaning="tflite", **cut)
    assert tuple(value.name for value in (*part.inputs, *part.outputs)) == taken
    assert len(part.model.lite.file.subgraphs[0].operators) < 7
    codes = np.random.default_rng(1).integers(-128, 128, whole.inputs[0].shape).astype(np.int8)
    known = {"t0": codes, **whole.run(codes, codes=True)}
    if inner := sorted({*taken} - known.keys()):
        known |= sb.load(path, meaning="tflite", end_at=inner).run(codes, codes=True)
    found = part.run(known[taken[0]], codes=True)[taken[1]]
    np.testing.assert_array_equal(found, known[taken[1]])


def test_parts_that_are_none(path):
    def refused(**cut):
        with pytest.raises(InputError) as caught:
            sb.load(path, meaning="tflite", **cut)
        return str(caught.value)

    assert "--end-at: expected a tensor of the network, found no 't99'" in refused(end_at="t99")
    assert "--start-at: expected a tensor of the network, found no 't1'" in refused(start_at="t1")
    assert "--start-at t16: expected tensors that the outputs need" in refused(
        start_at="t16", end_at="t9"
    )
    assert "--start-at: expected all inputs that the outputs need, found 't0'" in refused(
        start_at="t6"
    )


def test_a_package_keeps_the_meaning(path, tmp_path):
    """It holds the file, which states meaning and contract; the same C comes of it again."""
    net = sb.load(path, meaning="tflite:tflm-2026-09", end_at="t11")
    net = net.with_contract({"name": "gate", "version": "2"})
    made = net.compile(tmp_path / "out", sizes=False)
    assert not (made.folder / "model.onnx").exists()
    found = sb.load(made.folder)
    assert found.kind == "integer network"
    assert found.model.lite.meaning.name == "tflite:tflm-2026-09"
    assert found.contract.name == "gate"
    assert found.model.cpu == "portable"
    assert [value.name for value in found.outputs] == ["t11"]
    assert sb.load(made.folder / "model.tflite").model.integer.name == found.model.integer.name
    assert sb.load(made.folder / "model.tflite", meaning="exact").kind == "quantized network"
    checked = found.verify("random:3", ["torch", "c"])
    assert checked, checked
    assert "every file is what this version writes for its model.tflite" in str(checked)
    assert found.rebuild(tmp_path / "again") == made.report_sha256
    with pytest.raises(InputError, match=r"--meaning applies to quantized \.tflite files"):
        sb.load(made.folder, meaning="exact")
    (made.folder / "model.tflite").write_bytes(path.read_bytes())
    with pytest.raises(PackageError, match="another SHA-256"):
        sb.load(made.folder)


def test_a_meaning_that_a_file_states(path):
    """Untrusted, too."""
    file = parse(path.read_bytes(), "f")
    path.write_bytes(to_bytes(replace(file, metadata={"samebits.meaning": "tflite"})))
    assert sb.load(path).kind == "integer network"
    path.write_bytes(to_bytes(replace(file, metadata={"samebits.meaning": "other"})))
    with pytest.raises(InputError, match=r"f\.tflite: expected exact, tflite .*, found 'other'"):
        sb.load(path)


def changed(a, b, x) -> int:
    """Samples whose outputs differ, counted one by one."""
    own, other = (next(iter(net.run(x, codes=True).values())) for net in (a, b))
    return sum(not np.array_equal(*pair) for pair in zip(own, other, strict=True))


@pytest.mark.parametrize("meaning", ["exact", "tflite"])
def test_a_report_says_what_the_other_meaning_would_change(path, tmp_path, meaning):
    nets = {name: sb.load(path, meaning=name) for name in ("exact", "tflite")}
    own, other = nets[meaning], nets["tflite" if meaning == "exact" else "exact"]
    (value,) = own.inputs
    x = np.random.default_rng(3).normal(size=(12, *value.shape[1:])).astype(np.float32)
    count = changed(own, other, x)
    assert count > 0
    said = f"In the meaning {other.model.lite.meaning} the outputs of {count} of 12 samples"
    report = own.report(x)
    assert said in str(report)
    report.save(tmp_path / "page.html")
    assert said in (tmp_path / "page.html").read_text()
    assert "would have other codes" not in str(own.report())
