"""`sb.ship`: quantized, verified, packaged; nothing is written unless the bits are the same."""

from __future__ import annotations

import json
import re
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

import samebits as sb
from given_options import called
from hand_package import skip_unless_available
from samebits.codegen.run.targets import TARGETS, Target
from samebits.errors import InputError
from samebits.network import Network
from samebits.verification.backends.pytorch import PyTorch
from tiny_models import float_file, quantized_file

ONLY = {"backends": ["torch"]}
X = np.random.default_rng(2).normal(size=(12, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def no_sizes(monkeypatch):
    """Building for three boards is what compile's own tests check."""
    monkeypatch.setattr("samebits.codegen.run.requirements.BOARDS", ())


@pytest.fixture
def flipped(monkeypatch):
    """The torch backend flips the lowest bit of every code."""
    run = PyTorch.run
    monkeypatch.setattr(PyTorch, "run", lambda *given: [codes ^ 1 for codes in run(*given)])


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())


def files(folder) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- what is written ----------------------------------------------------------------------------


def test_a_module(tmp_path):
    out = tmp_path / "firmware"
    made = called(sb.ship, source=module(), calibration=X, out=out, **ONLY, package="zephyr")
    assert made
    assert (made.folder, made.page, made.board) == (out, out / "report.html", None)
    assert {"report.html", "model.onnx", "model.c", "zephyr/module.yml"} <= files(out)
    assert "SQNR" in (out / "report.html").read_text()
    text = str(made)
    assert text.startswith("Shipping Sequential\n")
    assert "dB to the float network\ncalibrated on 12 samples, compared on 12\n" in text
    assert f"written: {out}, for zephyr; see its README.md\n\nreport: {out}/report.html" in text
    json.dumps(made.to_dict(), allow_nan=False)
    assert [verdict["backend"] for verdict in made.to_dict()["verification"]["verdicts"]] == [
        "torch",
        "c",
    ]


def test_two_networks_in_one_program(tmp_path):
    """Each has a prefix of its own, and both link with one copy of the kernels."""
    for name, net in (("wake", module()), ("gesture", nn.Sequential(nn.Linear(4, 2)))):
        made = called(sb.ship, source=net, calibration=X, out=tmp_path / name, **ONLY, prefix=name)
        assert made.compiled.memory.prefix == name
        assert sb.load(made.folder).verify(backends=["c"])
    main = tmp_path / "main.c"
    main.write_text(
        '#include "wake/wake.h"\n#include "gesture/gesture.h"\n'
        "WAKE_INSTANCE(wake);\nGESTURE_INSTANCE(gesture);\n"
        "int main(void) {\n"
        "    static wake_input0_t a[WAKE_INPUT0_SIZE];\n"
        "    static wake_output0_t b[WAKE_OUTPUT0_SIZE];\n"
        "    static gesture_output0_t c[GESTURE_OUTPUT0_SIZE];\n"
        "    return wake_selftest(&wake, a, b) | gesture_selftest(&gesture, a, c) << 1;\n"
        "}\n"
    )
    sources = [*(tmp_path / "wake").glob("*.c"), *(tmp_path / "gesture").glob("*.c")]
    kernels = tmp_path / "wake/samebits/samebits_kernels.c"
    program = tmp_path / "app"
    subprocess.run(
        ["cc", f"-I{tmp_path}/wake", f"-I{tmp_path}", "-o", program, main, *sources, kernels],
        check=True,
    )
    assert subprocess.run([program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefix": "2nd"}, "expected a C identifier of at most 40 letters"),
        ({"prefix": "test", "package": "cmake"}, "CMake has a target 'test' of its own"),
    ],
)
def test_a_prefix_that_cannot_be_is_told_before_the_work(tmp_path, monkeypatch, options, said):
    monkeypatch.setattr("samebits.api.quantize", lambda *given, **more: pytest.fail("it works"))
    with pytest.raises(InputError, match=said):
        called(sb.ship, source=module(), calibration=X, out=tmp_path / "out", **options)


def test_it_is_quantize_verify_and_compile(tmp_path):
    """The same network and the same C, bit by bit."""
    made = called(
        sb.ship,
        source=module(),
        calibration=X,
        out=tmp_path / "a",
        **ONLY,
        scheme="power-of-two-s8",
    )
    net = sb.quantize(module(), X, sb.Formats(scheme="power-of-two-s8"))
    net.compile(tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b") | {"report.html"}
    for name in files(tmp_path / "b") - {"report.json"}:  # it states the page's SHA-256 too
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert made.network.report().sections == net.report().sections


def test_a_compiled_folder_gives_its_network_alone(tmp_path, monkeypatch):
    """The C that is compared is what will be written, not that of the folder."""
    monkeypatch.setattr(Target, "unavailable", lambda self: "not here")
    sb.load(quantized_file(tmp_path / "tiny.onnx")).compile(
        tmp_path / "a", sb.Packaging(prefix="kws")
    )
    (tmp_path / "a" / "kws.c").write_text("int changed;\n")
    made = called(sb.ship, source=tmp_path / "a", out=tmp_path / "b", **ONLY)
    assert made
    assert made.network.model.package is None
    assert made.verification.sealed == ""
    assert sb.load(tmp_path / "b").verify("random:1", ["torch"]).sealed


def test_the_folder_is_replaced(tmp_path):
    out = tmp_path / "firmware"
    called(sb.ship, source=module(), calibration=X, out=out, **ONLY, package="cmake")
    called(sb.ship, source=module(), calibration=X, out=out, **ONLY, package="zephyr")
    assert "CMakeLists.txt" not in files(out)
    assert sb.load(out).kind == "quantized network"


def test_a_board(tmp_path):
    skip_unless_available(TARGETS["cortex-m3"])
    made = called(
        sb.ship, source=module(), calibration=X, out=tmp_path / "c", **ONLY, board="cortex-m3"
    )
    assert made
    assert made.on_board.samples == 8
    assert [verdict.backend for verdict in made.on_board.verdicts] == ["cortex-m3"]
    assert "On the emulated cortex-m3\n" in str(made)
    assert made.compiled.memory.cpu == TARGETS["cortex-m3"].cpu


def test_the_kernels_that_are_written_are_compared(tmp_path, monkeypatch):
    """Whatever backends are named, the C with the kernels of --cpu runs before it is written."""
    skip_unless_available(TARGETS["c"])
    made = called(
        sb.ship, source=module(), calibration=X, out=tmp_path / "c", **ONLY, cpu="cortex-m4"
    )
    assert [v.backend for v in made.verification.verdicts] == ["torch", "c for cortex-m4"]
    assert all(v.equal for v in made.verification.verdicts)
    from samebits.verification.backends.generated_c import GeneratedC

    run = GeneratedC.run
    monkeypatch.setattr(GeneratedC, "run", lambda *given: [codes ^ 1 for codes in run(*given)])
    made = called(
        sb.ship, source=module(), calibration=X, out=tmp_path / "d", **ONLY, cpu="cortex-m4"
    )
    assert not made
    assert not (tmp_path / "d").exists()


def test_without_a_compiler_it_says_that_the_c_did_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr("samebits.codegen.run.toolchain.shutil.which", lambda name: None)
    made = called(sb.ship, source=module(), calibration=X, out=tmp_path / "c", **ONLY)
    assert made
    assert "c: not compared: c: " in str(made)
    assert "same bits: yes (1 not compared)" in str(made)


def test_its_page_says_what_was_compared(tmp_path):
    out = tmp_path / "c"
    called(sb.ship, source=module(), calibration=X, out=out, **ONLY)
    page = (out / "report.html").read_text()
    assert "The same bits: reference, torch" in page
    assert "computed 300 outputs of 100 samples" in page
    assert "network.verify(&#39;random:100&#39;, [&#39;torch&#39;" in page
    assert not re.search("for portable|for cortex", page)


def test_its_page_repeats_only_what_verify_knows(tmp_path):
    skip_unless_available(TARGETS["c"])
    called(sb.ship, source=module(), calibration=X, out=tmp_path / "c", **ONLY, cpu="cortex-m4")
    page = (tmp_path / "c" / "report.html").read_text()
    assert "torch and c for cortex-m4 computed" in page
    assert "[&#39;torch&#39;])" in page


def test_a_quantized_network_is_taken_as_it_is(tmp_path):
    path = quantized_file(tmp_path / "q.onnx")
    made = called(sb.ship, source=path, out=tmp_path / "c", **ONLY)
    note = f"{path} is a quantized network already: nothing was calibrated or quantized"
    assert made.network.notes == (note,)
    assert f"\nnote: {note}\n" in str(made)
    assert made.to_dict()["quantization"] is None


def test_a_recurrent_network(tmp_path):
    torch.manual_seed(0)
    sequences = torch.randn(8, 5, 4)
    made = called(
        sb.ship,
        source=nn.LSTM(4, 3, batch_first=True),
        calibration=sequences,
        out=tmp_path / "c",
        **ONLY,
    )
    assert made
    assert "calibrated on 8 sequences" in str(made)


# --- nothing is written -------------------------------------------------------------------------


def test_nothing_is_written_where_bits_differ(tmp_path, flipped):
    made = called(sb.ship, source=module(), calibration=X, out=tmp_path / "c", **ONLY)
    assert not made
    assert (made.folder, made.page, made.to_dict()["out"]) == (None, None, None)
    assert not (tmp_path / "c").exists()
    assert str(made).endswith("same bits: NO\n\nnothing written: no package without the same bits")


def test_an_earlier_folder_stays(tmp_path, monkeypatch, flipped):
    out = tmp_path / "c"
    assert sb.ship(module(), X, out, backends=["c"]) or pytest.skip("needs a C compiler")
    before = {name: (out / name).read_bytes() for name in files(out)}
    assert not called(sb.ship, source=module(), calibration=X, out=out, **ONLY, package="zephyr")
    assert {name: (out / name).read_bytes() for name in files(out)} == before


def test_nothing_compared_is_no_package(tmp_path):
    made = sb.ship(module(), X, tmp_path / "c", backends=["reference"])
    assert not made
    assert "nothing compared" in str(made)
    assert not (tmp_path / "c").exists()


def test_a_board_that_differs(tmp_path, monkeypatch):
    """The board's outputs are compared too before anything is written."""
    skip_unless_available(TARGETS["cortex-m3"])
    from samebits.verification.backends.generated_c import GeneratedC

    run = GeneratedC.run

    def flipped_on_board(self, *given):
        return [codes ^ (self.name == "cortex-m3") for codes in run(self, *given)]

    monkeypatch.setattr(GeneratedC, "run", flipped_on_board)
    made = called(
        sb.ship, source=module(), calibration=X, out=tmp_path / "c", **ONLY, board="cortex-m3"
    )
    assert made.verification
    assert not made.on_board
    assert not made
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"package": "bazel"}, "--package: expected one of make, cmake, arduino, zephyr"),
        ({"cpu": "cortex-m99"}, "--cpu: expected one of portable, "),
        ({"board": "s390x"}, "--board: expected one of cortex-m0, "),
        (
            {"board": "cortex-m3", "cpu": "cortex-m55"},
            "--cpu: expected cortex-m3, whose kernels run on --board cortex-m3, found cortex-m55",
        ),
        ({"backends": ["gpu"]}, "unknown backend 'gpu'; expected one of "),
        ({"backends": "torch"}, "backends: expected a list of names, found the text 'torch'"),
    ],
)
def test_options_are_refused_before_any_work(tmp_path, monkeypatch, options, message):
    monkeypatch.setattr("samebits.api.quantize", lambda *given, **more: pytest.fail("too late"))
    with pytest.raises(InputError, match=f"^{message}"):
        called(sb.ship, source=module(), calibration=X, out=tmp_path / "c", **options)
    assert not (tmp_path / "c").exists()


def test_what_cannot_run_here_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("samebits.api.quantize", lambda *given, **more: pytest.fail("too late"))
    monkeypatch.setattr(PyTorch, "unavailable", lambda self: "torch: no room")
    with pytest.raises(InputError, match=r"^backend torch cannot run here: torch: no room; leave"):
        called(sb.ship, source=module(), calibration=X, out=tmp_path / "c", **ONLY)
    monkeypatch.setattr("samebits.codegen.run.toolchain.shutil.which", lambda name: None)
    with pytest.raises(
        InputError, match=r"^--board cortex-m3 cannot run here: cortex-m3: arm-none"
    ):
        sb.ship(module(), X, tmp_path / "c", board="cortex-m3")


def test_a_folder_of_other_files(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="expected a new or empty folder or an earlier package"):
        called(sb.ship, source=module(), calibration=X, out=tmp_path, **ONLY)
    assert files(tmp_path) == {"mine.txt"}


@pytest.mark.parametrize(
    "needless", [{"calibration": X}, {"scheme": "symmetric-s8"}, {"effort": "high"}]
)
def test_needless_options(tmp_path, needless):
    path = quantized_file(tmp_path / "q.onnx")
    (option,) = needless
    with pytest.raises(InputError) as caught:
        called(sb.ship, source=path, out=tmp_path / "c", **needless)
    assert str(caught.value) == (
        f"--{'data' if option == 'calibration' else option} does not apply to {path}, which is a "
        "quantized network already; leave it out"
    )


def test_a_float_network_needs_calibration(tmp_path):
    for source in (module(), float_file(tmp_path / "f.onnx", (1, 4))):
        with pytest.raises(InputError, match=r"^expected --data SAMPLES for a float network"):
            sb.ship(source, out=tmp_path / "c")


def test_firmware(tmp_path):
    sb.load(module(), example=torch.ones(1, 4)).compile(tmp_path / "npu", target="npu")
    with pytest.raises(InputError, match="expected a float or quantized network to ship, found"):
        sb.ship(tmp_path / "npu", out=tmp_path / "c")


def test_a_written_package_that_fails_late_leaves_nothing(tmp_path, monkeypatch):
    def fails(self, quality, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Network, "report", fails)
    with pytest.raises(OSError, match="No space left"):
        called(sb.ship, source=module(), calibration=X, out=tmp_path / "c", **ONLY)
    assert list(tmp_path.iterdir()) == []
