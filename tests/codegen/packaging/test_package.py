"""The folder: its text, its build, its harness, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from samebits.codegen import write_package
from samebits.codegen.memory import STACK
from samebits.codegen.packaging.package import kernel_symbol
from samebits.errors import InputError, UnsupportedError
from samebits.ir.graph import Graph, GraphBuilder
from samebits.ir.integer.layers import fnv1a, layers
from samebits.ir.interpreter import run, trace
from samebits.ir.value import Quantization

GOLDEN = (
    *("model.h", "model.c", "model_constants.h", "model_constants.c", "README.md", "Makefile"),
    *("test/model_main.c", "test/model_vectors.h", "report.json"),
)
VERSION = version("samebits")
CODES = {"low": -128, "high": 127, "dtype": "int8"}


def small(name: str = "small") -> Graph:
    """conv + requantize, table, add of two branches, and an accumulator that leaves the graph."""
    g = GraphBuilder(name)
    x = g.input("x", "int8", (1, 4, 4, 2), Quantization(Fraction(1, 16), 3))
    other = g.input("y", "uint8", (1, 4, 4, 3))
    weights = np.arange(3 * 3 * 3 * 2).reshape(3, 3, 3, 2) % 11 - 5
    w = g.constant("w", weights.astype(np.int8))
    b = g.constant("b", np.array([100, -50, 7], np.int32))
    acc = g.add("conv", [x, w, b], {"pads": (1, 1, 1, 1), "pad_code": 3})
    ratios = (Fraction(1, 8), Fraction(3, 64), Fraction(11184811, 1 << 28))
    y = g.add("requantize", [acc], {"ratios": ratios, "zero": -4, **CODES})
    t = g.constant("t", np.maximum(np.arange(-128, 128), -2).astype(np.int8))
    y = g.add("table", [y, t])
    acc = g.add("add", [y, other], {"factors": (3, -1), "offset": 7})
    z = g.add("requantize", [acc], {"ratios": (Fraction(1, 3),), **CODES})
    total = g.add("reduce_sum", [z], {"axes": (1, 2), "keepdims": False})
    return g.build([z, total])


def samples(graph: Graph, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    found = []
    for name in graph.inputs:
        value = graph.values[name]
        info = np.iinfo(value.dtype)
        shape = (count * value.shape[0], *value.shape[1:])
        found.append(rng.integers(info.min, info.max, shape, value.dtype, endpoint=True))
    return found


def build(folder: Path, *flags: str, target: str = "all", cc: str = "cc") -> str:
    done = subprocess.run(
        ["make", target, f"CC={cc}", "OPTIMIZE=" + " ".join(("-O0", "-Werror", *flags))],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_golden_text_is_what_is_compiled(
    golden: Callable[[str, str], None], cc: str, tmp_path: Path
) -> None:
    graph = small()
    report = write_package(graph, tmp_path / "out", vectors=samples(graph, 3))
    for name in GOLDEN:
        text = (tmp_path / "out" / name).read_text()
        text = text.replace(kernel_symbol(), "samebits_kernels_0").replace(VERSION, "0.0")
        text = re.sub("[0-9a-f]{64}", "sha256", text)
        golden(f"tests/golden/codegen/{name}", text)
    assert "0 of 154 outputs differ" in build(tmp_path / "out", cc=cc, target="test")
    assert report.arena == report.arena_bound


def test_harness_maps_samples_and_traces_layers(cc: str, tmp_path: Path) -> None:
    graph, folder = small(), tmp_path / "out"
    write_package(graph, folder, prefix="net")
    inputs = samples(graph, 5)
    pieces = [
        list(sample)
        for sample in zip(*(a.reshape(5, 1, *a.shape[1:]) for a in inputs), strict=True)
    ]
    stdin = b"".join(a.tobytes() for sample in pieces for a in sample)
    build(folder, cc=cc)
    raw = subprocess.run([folder / "net"], input=stdin, capture_output=True, check=True).stdout
    results = [run(graph, sample) for sample in pieces]
    assert raw == b"".join(
        a.astype(a.dtype.newbyteorder("<")).tobytes() for sample in results for a in sample
    )
    cut = subprocess.run([folder / "net"], input=stdin[:-1], capture_output=True, check=False)
    assert cut.returncode == 2

    (folder / "net").unlink()
    build(folder, "-DSAMEBITS_TRACE=2", cc=cc)
    lines = subprocess.run(
        [folder / "net"], input=stdin, capture_output=True, check=True, text=False
    ).stdout.decode().splitlines()  # fmt: skip
    wanted = []
    for sample in pieces:
        values = trace(graph, sample)
        for index, name in enumerate(layers(graph)):
            data = values[name].astype(values[name].dtype.newbyteorder("<")).tobytes().hex()
            wanted.append(f"{index} {fnv1a(values[name]):016x} {values[name].size} {data}")
    assert lines == wanted
    (folder / "net").unlink()
    build(folder, "-DSAMEBITS_TRACE", cc=cc)
    short = subprocess.run([folder / "net"], input=stdin, capture_output=True, check=True)
    assert short.stdout.decode().splitlines() == [line.rsplit(" ", 1)[0] for line in wanted]


def test_report_names_layers_and_memory(tmp_path: Path) -> None:
    graph = small()
    report = write_package(graph, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [layer["name"] for layer in found["layers"]] == list(layers(graph))
    assert found["inputs"][0] == {
        "name": "x", "dtype": "int8", "shape": [1, 4, 4, 2], "scale": "1/16", "zero_point": 3,
    }  # fmt: skip
    assert found["weights"] + found["tables"] == report.constants > found["tables"] == 256
    assert max(layer["live"] for layer in found["layers"]) == report.arena
    assert found["stack_cortex_m"] == 256 + max(
        STACK[k] for k in ("conv8", "broadcast", "table", "reduce")
    )


def test_text_of_a_model_is_quoted_in_c(cc: str, tmp_path: Path) -> None:
    """In string literals, escaped; in comments and pages letters alone; else nowhere."""
    evil = '*/ "; #include </etc/passwd> \n\\ %s ../../x\u202e\u2066\x1b'
    g = GraphBuilder(evil)
    x = g.input(evil, "int8", (4,))
    y = g.add("clip", [x], {"low": -1, "high": 1}, name=evil, outputs=[evil + "out"])
    write_package(g.build([y]), tmp_path / "out")
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file() and file.name not in ("report.json", "model.h", "README.md"):
            assert "passwd" not in file.read_text()
        if file.is_file():
            assert not set(file.read_text()) & set("\u202e\u2066\x1b")
    lines = (tmp_path / "out" / "model.h").read_text().splitlines()
    literal = r'"*/ \042; #include </etc/passwd> \012\134 %s ../../x\342\200\256\342\201\246\033'
    assert f'#define MODEL_INPUT0_NAME {literal}"' in lines
    assert f'#define MODEL_OUTPUT0_NAME {literal}out"' in lines
    assert lines[0].startswith("/* ?? ?; ?include ??etc?passwd?".replace(";", "?"))
    assert "0 of 17 outputs differ" in build(tmp_path / "out", cc=cc, target="test")
    layer = json.loads((tmp_path / "out" / "report.json").read_text())["layers"][0]
    assert layer["name"] == evil + "out"


@pytest.mark.parametrize(
    "prefix",
    ["", "1a", "a b", "int", "main", "samebits_x", "a" * 41, "a-b", "é", "SAMEBITS", "a\n"],
)
def test_prefix_has_to_be_an_identifier(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a C identifier"):
        write_package(small(), tmp_path / "out", prefix=prefix)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="expected a new or empty folder or an earlier package"):
        write_package(small(), tmp_path)
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(InputError):
        write_package(small(), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_an_earlier_package_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    write_package(small(), folder, prefix="first")
    write_package(small(), folder, prefix="second")
    assert not (folder / "first.c").exists()
    assert (folder / "second.c").exists()
    assert os.listdir(tmp_path / "deep") == ["out"]


def test_files_beside_a_package_appear_with_it(tmp_path: Path) -> None:
    write_package(small(), tmp_path / "out", beside={"model.onnx": b"\x08", "audio/a.h": "é\n"})
    assert (tmp_path / "out" / "model.onnx").read_bytes() == b"\x08"
    assert (tmp_path / "out" / "audio" / "a.h").read_bytes() == "é\n".encode()
    assert (tmp_path / "out" / "model.c").exists()


def test_wrong_vectors_are_refused(tmp_path: Path) -> None:
    graph = small()
    good = samples(graph, 2)
    for vectors, message in (
        (good[:1], "expected 2 arrays"),
        ([good[0].astype(np.float32), good[1]], "expected integers"),
        ([good[0][..., :1], good[1]], "expected integers in one or more pieces"),
        ([good[0].astype(int) + 300, good[1]], "expected codes of int8"),
        ([good[0][:1], good[1]], "as many samples for every input"),
    ):
        with pytest.raises(InputError, match=message):
            write_package(graph, tmp_path / "out", vectors=vectors)
    with pytest.raises(UnsupportedError, match="expected the target 'c'"):
        write_package(graph, tmp_path / "out", target="rust")


def test_what_c_cannot_do_is_said() -> None:
    from samebits.codegen.lowering.lower import lower_to_calls

    g = GraphBuilder("variable")
    x, t = g.input("x", "int8", (4,)), g.input("t", "int8", (256,))
    with pytest.raises(UnsupportedError, match=r"node 'table' \(table\): expected constant data"):
        lower_to_calls(g.build([g.add("table", [x, t])]))
    g = GraphBuilder("many")
    x = g.input("x", "int8", (4,))
    with pytest.raises(UnsupportedError, match="at most 16 inputs, found 17"):
        lower_to_calls(g.build([g.add("add", [x] * 17, {"factors": (1,) * 17})]))


def test_no_floating_point_and_a_bounded_stack(tmp_path: Path) -> None:
    """On a core without FPU: no routine of libgcc's for floats, and frames within the bounds."""
    arm = shutil.which("arm-none-eabi-gcc")
    if arm is None:
        pytest.skip("needs arm-none-eabi-gcc")
    write_package(small(), tmp_path / "out")
    for level, core in (("-O0", "cortex-m0"), ("-O2", "cortex-m4"), ("-Os", "cortex-m55")):
        command = [arm, "-std=c99", f"-mcpu={core}", "-mthumb", level, "-Wall", "-Wextra"]
        command += ["-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-fcallgraph-info=su"]
        command += ["-c", "samebits/samebits_kernels.c", "-o", "k.o"]
        subprocess.run(command, cwd=tmp_path / "out", check=True)
        listed = subprocess.run(
            [arm.replace("gcc", "nm"), "-u", "k.o"], cwd=tmp_path / "out", capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        symbols = set(listed.stdout.replace("U", " ").split())
        integer = {"__aeabi_lmul", "__aeabi_ldivmod", "__aeabi_llsl", "__aeabi_lasr"}
        integer |= {
            "__aeabi_uldivmod",
            "__aeabi_llsr",
            "__aeabi_idiv",
            "__aeabi_idivmod",
            "memcpy",
            "memset",
        }
        assert {s for s in symbols if not s.startswith("__gnu_thumb1_case")} <= integer
        depths = call_depths((tmp_path / "out" / "k.ci").read_text())
        for name, bound in STACK.items():
            assert depths[f"samebits_run_{name}"] <= bound, (name, level, core)


def call_depths(graph: str) -> dict[str, int]:
    """Bytes of stack below each function, from gcc's call graph (-fcallgraph-info=su)."""
    own: dict[str, int] = {}
    calls: dict[str, list[str]] = {}
    for line in graph.splitlines():
        names = [part.split('"')[0].split(":")[-1] for part in line.split('name: "')[1:]]
        if line.startswith("node"):
            title = line.split('title: "')[1].split('"')[0].split(":")[-1]
            before = line.split(" bytes")[0]
            own[title] = int(before.rsplit("\\n", 1)[1]) if " bytes" in line else 64
        elif line.startswith("edge"):
            calls.setdefault(names[0], []).append(names[1])

    def depth(name: str) -> int:
        return own[name] + max((depth(called) for called in calls.get(name, [])), default=0)

    return {name: depth(name) for name in own}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("-O2", marks=pytest.mark.slow),
        "-O1 -mavx2",
        pytest.param("-O1 -DSAMEBITS_TRACE", marks=pytest.mark.slow),
    ],
)
def test_both_compilers_accept_every_kernel_and_harness(
    flags: str, compiler: str, tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    if os.uname().machine != "x86_64" and "avx" in flags:
        pytest.skip("needs an x86-64 machine")
    write_package(small(), tmp_path / "out")
    done = subprocess.run(
        ["make", "-B", f"CC={compiler}", f"OPTIMIZE={flags} -Werror"], cwd=tmp_path / "out",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
