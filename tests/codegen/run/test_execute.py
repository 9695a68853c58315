"""Building packages for every target and running samples through them, by a package written by
hand to the contract of generated ones."""

from __future__ import annotations

import dataclasses
import functools
import os
import stat
from fractions import Fraction

import numpy as np
import pytest

from compare import assert_same
from hand_package import (
    CODES,
    HEADER,
    IDENTITY,
    INTERFACE,
    build_body,
    skip_unless_available,
    write_package,
)
from samebits import codegen
from samebits.codegen.run import toolchain
from samebits.codegen.run.execute import (
    LayerTrace,
    build,
    execute,
    execute_trace,
    instruction_count,
    stack_used,
)
from samebits.codegen.run.footprint import float_symbols, stack_bound
from samebits.codegen.run.interface import DTYPES, Interface
from samebits.codegen.run.targets import SANITIZERS, TARGETS, host, valgrind
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.ir import Graph, GraphBuilder, Node, Value, interpreter
from samebits.ir.integer import layers

HOSTS = [
    host(compiler, *flags)
    for compiler in ("gcc", "clang")
    for flags in (("-O0",), ("-O3",), ("-Os",), ("-O1", *SANITIZERS))
]
SLOW = pytest.mark.slow
ALL = [*TARGETS.values(), *HOSTS, valgrind()]
FIVE = np.arange(5, dtype=np.int8)[:, None]
AFFINE = """
    const int32_t sum = 3 * *input0 + 5;
    *output0 = (int8_t)(sum < -128 ? -128 : sum > 127 ? 127 : sum);
"""


@pytest.fixture(params=ALL, ids=lambda target: target.name)
def target(request):
    return request.param


def test_every_code_on_every_target(target, tmp_path):
    program = build_body(AFFINE, target, tmp_path)
    expected = np.clip(3 * CODES.astype(int) + 5, -128, 127)
    outputs = execute(program, [CODES[:, None]])
    assert [array.dtype for array in outputs] == [np.int8]
    assert outputs[0].shape == (256, 1)
    assert_same(outputs[0], expected, CODES)


@pytest.mark.parametrize("name", ["c", "cortex-m0"])
def test_no_samples(name, tmp_path):
    program = build_body(AFFINE, TARGETS[name], tmp_path)
    assert execute(program, [FIVE[:0]])[0].shape == (0, 1)


# --- several tensors ------------------------------------------------------------------------------

WIDE = Interface(
    "wide",
    (Value("a", "int8", (2, 3)), Value("b", "int16", (2,)), Value("c", "int64", (2, 1, 2))),
    (Value("d", "int64", (2, 2)), Value("e", "uint8", (6,)), Value("f", "int32", (2,))),
)
WIDE_HEADER = """
#include <stdint.h>
typedef struct {
    int unused;
} wide_t;
#define WIDE_INSTANCE(name) static const wide_t name = {0}
typedef int8_t wide_input0_t;
typedef int16_t wide_input1_t;
typedef int64_t wide_input2_t;
typedef int64_t wide_output0_t;
typedef uint8_t wide_output1_t;
typedef int32_t wide_output2_t;
void wide_run(const wide_t *net, const wide_input0_t *a, const wide_input1_t *b,
              const wide_input2_t *c, wide_output0_t *d, wide_output1_t *e, wide_output2_t *f);
"""
WIDE_SOURCE = """
#include "wide.h"
void wide_run(const wide_t *net, const wide_input0_t *a, const wide_input1_t *b,
              const wide_input2_t *c, wide_output0_t *d, wide_output1_t *e, wide_output2_t *f)
{
    int i;
    (void)net;
    for (i = 0; i < 4; ++i) {
        d[i] = c[3 - i];
    }
    for (i = 0; i < 6; ++i) {
        e[i] = (uint8_t)a[i];
    }
    f[0] = -70000 * b[0];
    f[1] = b[1];
}
"""


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.board])
def test_several_inputs_and_outputs(name, tmp_path):
    skip_unless_available(TARGETS[name])
    (tmp_path / "wide.h").write_text(WIDE_HEADER)
    (tmp_path / "wide.c").write_text(WIDE_SOURCE)
    program = build(tmp_path, TARGETS[name], tmp_path / "work", WIDE)
    generator = np.random.default_rng(1)
    a = generator.integers(-128, 128, (8, 3), np.int8)
    b = generator.integers(-(2**14), 2**14, 8, np.int16)
    c = generator.integers(-(2**63), 2**63, (8, 1, 2), np.int64)
    d, e, f = execute(program, [a, b, c])
    assert d.tolist() == c.reshape(4, 4)[:, ::-1].reshape(8, 2).tolist()
    assert e.tolist() == a.reshape(-1).astype(np.uint8).tolist()
    first, second = b.reshape(4, 2).astype(np.int32).T
    assert f.tolist() == np.stack([-70000 * first, second], axis=1).reshape(-1).tolist()


def test_pack_and_unpack_are_inverse():
    generator = np.random.default_rng(2)
    for dtype in DTYPES:
        limits = np.iinfo(dtype)
        for shape in ((), (3,), (1, 4), (2, 2, 2)):
            value = Value("x", dtype, shape)
            both = Interface("p", (value, Value("y", "uint8", (1,))), (value, value))
            size = (2 * shape[0], *shape[1:]) if shape else (2,)
            array = generator.integers(limits.min, limits.max, size, dtype, endpoint=True)
            data, runs = both.pack([array, np.zeros(2, np.uint8)])
            assert runs == 2
            half = len(data) // 2
            doubled = b"".join(2 * part[:-1] for part in (data[:half], data[half:]))
            for back in both.unpack(doubled, 2, "test"):
                assert back.dtype == array.dtype
                assert back.tolist() == array.tolist()


def test_pack_is_little_endian():
    interface = Interface("p", (Value("x", "int16", (1, 2)),), (Value("y", "int16", (1,)),))
    for order in "<>":
        array = np.array([[1, -2]], dtype=np.dtype("int16").newbyteorder(order))
        assert interface.pack([array]) == (b"\x01\x00\xfe\xff", 1)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "expected 1 input arrays, found 0"),
        ([FIVE, FIVE], "expected 1 input arrays, found 2"),
        (
            [FIVE.astype(np.int16)],
            "input x: expected int8[a multiple of 1, 1], found int16[5, 1]",
        ),
        ([FIVE[:, 0]], "input x: expected int8[a multiple of 1, 1], found int8[5]"),
        ([FIVE.reshape(1, 5)], "input x: expected int8[a multiple of 1, 1], found int8[1, 5]"),
    ],
)
def test_inputs_that_do_not_fit(inputs, message):
    with pytest.raises(InputError) as error:
        INTERFACE.pack(inputs)
    assert str(error.value) == message


def test_inputs_that_do_not_fit_the_batch():
    a, b, c = np.zeros((4, 3), np.int8), np.zeros(4, np.int16), np.zeros((4, 1, 2), np.int64)
    with pytest.raises(InputError, match=r"input a: expected int8\[a multiple of 2, 3\]"):
        WIDE.pack([a[:3], b, c])
    with pytest.raises(InputError, match=r"one number of samples, found \[1, 2\]"):
        WIDE.pack([a, b[:2], c])


def test_output_that_does_not_fit():
    with pytest.raises(SamebitsError, match="here: expected 3 bytes of output from 3 runs, found"):
        INTERFACE.unpack(b"12", 3, "here")


def test_interfaces_that_are_refused():
    x = Value("x", "int8", (1,))
    with pytest.raises(InputError, match="expected a C identifier as prefix, found 'a b'"):
        Interface("a b", (x,), (x,))
    with pytest.raises(UnsupportedError, match="expected a graph with an input and an output"):
        Interface("model", (), (x,))
    with pytest.raises(UnsupportedError, match=r"expected integers .*, found x: float32\[1\]"):
        Interface("model", (Value("x", "float32", (1,)),), (x,))
    with pytest.raises(UnsupportedError, match=r"expected integers .*, found x: int8\[0, 2\]"):
        Interface("model", (x,), (Value("x", "int8", (0, 2)),))


def test_interface_of_a_graph():
    x, y = Value("in put", "int8", (1, 2)), Value("y", "int8", (2,))
    node = Node("reshape", "r", ("in put",), ("y",), {"shape": (2,)})
    graph = Graph("g", ("in put",), ("y",), (node,), {}, {"in put": x, "y": y})
    assert Interface.of(graph, "net") == Interface("net", (x,), (y,))


def test_glue_holds_no_name_of_the_model():
    value = Value('"; #error', "int8", (1, 2))
    assert "error" not in Interface("model", (value,), (value,)).glue()


def test_glue_refuses_other_widths(tmp_path):
    skip_unless_available(TARGETS["cortex-m0"])
    write_package(tmp_path / "package", IDENTITY)
    other = dataclasses.replace(INTERFACE, inputs=(Value("x", "int16", (1, 1)),))
    with pytest.raises(InputError, match=r"expected generated C that compiles .*check_input0"):
        build(tmp_path / "package", TARGETS["cortex-m0"], tmp_path / "work", other)


REPORT = (
    '{"format": "samebits-package-2", "prefix": "net", '
    '"inputs": [{"name": "x", "dtype": "int8", "shape": [1, 2]}], '
    '"outputs": [{"name": "y", "dtype": "int64", "shape": []}]}'
)


def test_interface_of_a_report(tmp_path):
    (tmp_path / "report.json").write_text(REPORT)
    x, y = Value("x", "int8", (1, 2)), Value("y", "int64", ())
    assert Interface.read(tmp_path) == Interface("net", (x,), (y,))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (REPORT, "", "expected the report of a package"),
        (REPORT, "[]", "expected the report of a package"),
        (REPORT, "[" * 100_000, "expected the report of a package"),
        (
            "package-2",
            "package-3",
            "report.json: expected format 'samebits-package-2' of samebits, found "
            "'samebits-package-3'; generate the C again: samebits compile MODEL --target c",
        ),
        ('"format"', '"other"', "expected format 'samebits-package-2' of samebits, found None; "),
        (REPORT, "\ud800", "expected the report of a package"),
        ('"inputs"', '"other"', "expected the report of a package"),
        ("[1, 2]", "7", "expected the report of a package"),
        ("[1, 2]", "[-1]", "expected the report of a package"),
        ('"net"', '"a;b"', "report.json: expected a C identifier as prefix, found 'a;b'"),
        ("[1, 2]", "[0]", "expected integers at inputs and outputs"),
        ("[1, 2]", "[65536, 65536]", "expected at most 2147483648 bytes, found x"),
        ("int8", "float32", "expected integers at inputs and outputs"),
    ],
)
def test_reports_that_are_refused(old, new, message, tmp_path):
    text = REPORT.replace(old, new).encode("utf-8", errors="surrogatepass")
    (tmp_path / "report.json").write_bytes(text)
    with pytest.raises((InputError, UnsupportedError), match=message):
        Interface.read(tmp_path)


# --- generated packages ---------------------------------------------------------------------------


@functools.cache
def conv_net() -> Graph:
    """Convolution, requantization by channel, pool, table and a linear layer; two outputs."""
    generator = np.random.default_rng(3)
    b = GraphBuilder("net")
    x = b.input("x", "int8", (1, 8, 8, 3))
    w = b.constant("w", generator.integers(-127, 128, (6, 3, 3, 3), np.int8))
    bias = b.constant("b", generator.integers(-1000, 1000, 6, np.int32))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    y = b.add("conv", [x, w, bias], {**window, "pad_code": -3, "dtype": "int32"})
    codes = {"low": -128, "high": 127, "dtype": "int8"}
    ratios = tuple(Fraction(1, 400 + 37 * i) for i in range(6))
    y = b.add("requantize", [y], {"ratios": ratios, "zero": -5, **codes})
    pool = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    y = b.add("max_pool", [y], pool)
    table = np.clip(np.arange(-128, 128) * 3 // 2, -128, 127).astype(np.int8)
    pooled = b.add("table", [y, b.constant("t", table)])
    y = b.add("reshape", [pooled], {"shape": (1, 96)})
    w = b.constant("w2", generator.integers(-127, 128, (10, 96), np.int8))
    bias = b.constant("b2", generator.integers(-1000, 1000, 10, np.int32))
    y = b.add("linear", [y, w, bias], {"dtype": "int32"})
    y = b.add("requantize", [y], {"ratios": (Fraction(1, 999),), "zero": 3, **codes})
    return b.build([y, pooled])


EXTREMES = np.array([[-128], [127]], np.int8)


@functools.cache
def conv_samples() -> np.ndarray:
    random = np.random.default_rng(4).integers(-128, 128, (3, 8, 8, 3), np.int8)
    return np.concatenate([random, np.broadcast_to(EXTREMES[:, :, None, None], (2, 8, 8, 3))])


@pytest.mark.parametrize(
    "target",
    [
        target if target.name in ("cortex-m0", "s390x") else pytest.param(target, marks=SLOW)
        for target in ALL
    ],
    ids=lambda target: target.name,
)
def test_conv_net_gives_the_codes_of_the_interpreter(target, tmp_path):
    skip_unless_available(target)
    graph, samples = conv_net(), conv_samples()
    codegen.write_package(graph, tmp_path / "package")
    program = build(tmp_path / "package", target, tmp_path / "work")
    assert program.interface == Interface.of(graph)
    expected = [interpreter.run(graph, [sample[None]]) for sample in samples]
    for output, arrays in zip(
        execute(program, [samples]), zip(*expected, strict=True), strict=True
    ):
        assert_same(output, np.concatenate(arrays), np.arange(output.size))
    if target.board:
        assert float_symbols(program) == []
        used = stack_used(program, [samples])
        assert used < stack_bound(program).bytes + 256 < target.board.stack
        counts = instruction_count(program, [samples])
        assert counts == instruction_count(program, [samples])
        assert all(count > 54 * 192 for count in counts)  # at least one per product


@SLOW
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_conv_net_gives_the_trace_of_the_interpreter(target, tmp_path):
    skip_unless_available(target)
    graph, samples = conv_net(), conv_samples()
    codegen.write_package(graph, tmp_path / "package")
    program = build(tmp_path / "package", target, tmp_path / "work", trace=True)
    expected = []
    for sample in samples:
        values = interpreter.trace(graph, [sample[None]])
        arrays = [values[name] for name in layers.layers(graph)]
        expected.append(
            [LayerTrace(i, layers.fnv1a(codes), codes.size) for i, codes in enumerate(arrays)]
        )
    assert execute_trace(program, [samples]) == expected
    if not target.board:
        with pytest.raises(UnsupportedError, match="found one that traces only"):
            execute(program, [samples])


# --- traces ---------------------------------------------------------------------------------------

TRACED = """
#ifdef SAMEBITS_TRACE
    static const int64_t wide[2] = {-2, 3};
    model_trace(0, input0, 1, 1);
    model_trace(7, wide, 2, 8);
#endif
"""


def fnv1a(data: bytes) -> int:
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.board])
def test_trace_on_boards(name, tmp_path):
    skip_unless_available(TARGETS[name])
    write_package(tmp_path / "package", TRACED + IDENTITY)
    program = build(tmp_path / "package", TARGETS[name], tmp_path / "w", INTERFACE, trace=True)
    assert fnv1a(b"a") == 0xAF63DC4C8601EC8C  # of the authors' test vectors
    wide = LayerTrace(7, fnv1a(np.array([-2, 3], "<i8").tobytes()), 2)
    expected = [[LayerTrace(0, fnv1a(bytes([code])), 1), wide] for code in range(5)]
    assert execute_trace(program, [FIVE]) == expected
    assert execute_trace(program, [FIVE[:0]]) == []
    assert execute(program, [FIVE])[0].tolist() == FIVE.tolist()


def test_trace_of_a_program_without(tmp_path):
    with pytest.raises(UnsupportedError, match="expected a program built with trace=True"):
        execute_trace(build_body(IDENTITY, host(), tmp_path), [FIVE])


# --- failures -------------------------------------------------------------------------------------


def test_folder_without_a_package(tmp_path):
    with pytest.raises(InputError, match=r"expected a folder of generated C with model.h, found"):
        build(tmp_path, host(), tmp_path / "work", INTERFACE)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "const int32_t wide = 3 * *input0; *output0 = wide;",
            r"compiles without a warning, found: .*conversion",
        ),
        ("int unused; *output0 = *input0;", r"found: .*unused"),
        ("int8_t other(int8_t code); *output0 = other(*input0);", r"found: .*undefined reference"),
    ],
)
def test_c_that_does_not_build(body, message, tmp_path):
    with pytest.raises(InputError, match=message):
        build_body(body, host(), tmp_path)


@pytest.mark.parametrize("name", ["c", "cortex-m3", "s390x"])
def test_timeout(name, tmp_path):
    body = 'for (;;) { __asm__ volatile("" : : "r"(input0), "r"(output0)); }'
    program = build_body(body, TARGETS[name], tmp_path)
    with pytest.raises(InputError) as error:
        execute(program, [FIVE], timeout=0.3)
    assert str(error.value) == (
        f"{name}: expected 5 runs to end within 0.3 seconds, found the program still running; "
        "give fewer samples or a longer timeout"
    )


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("int8_t codes[2] = {0, 0}; *output0 = codes[*input0];", "stack-buffer-overflow|index"),
        (
            "const int32_t sum = 2147483647 + *input0; *output0 = (int8_t)sum;",
            "signed integer overflow",
        ),
        ("*output0 = (int8_t)(1 << (31 + *input0) != 0);", "shift"),
    ],
)
def test_sanitizers_see(compiler, body, message, tmp_path):
    program = build_body(body, host(compiler, *SANITIZERS), tmp_path)
    with pytest.raises(SamebitsError, match=rf"it ended with code .*({message}).*; report the"):
        execute(program, [FIVE])


def test_valgrind_sees_what_was_never_written(tmp_path):
    body = "volatile int8_t code[4]; code[0] = *input0; *output0 = 1; if (code[1]) *output0 = 2;"
    target = valgrind("cc", "-O0")
    program = build_body(body.replace("if", "\n    if"), target, tmp_path)
    with pytest.raises(SamebitsError, match="it ended with code 99"):
        execute(program, [FIVE])


def test_a_crash_is_told(tmp_path):
    program = build_body("__builtin_trap(); *output0 = *input0;", host(), tmp_path)
    with pytest.raises(SamebitsError, match="cc: expected the program to end without an error"):
        execute(program, [FIVE])


def test_truncated_output_is_told(tmp_path):
    skip_unless_available(host())
    write_package(tmp_path / "package", IDENTITY)
    (tmp_path / "package/test/model_main.c").write_text("int main(void) { return 0; }")
    program = build(tmp_path / "package", host(), tmp_path / "work", INTERFACE)
    with pytest.raises(SamebitsError, match="cc: expected 5 bytes of output from 5 runs, found 0"):
        execute(program, [FIVE])


def test_work_of_two_calls_is_apart(tmp_path):
    program = build_body(IDENTITY, host(), tmp_path)
    before = sorted(os.listdir(program.path.parent))
    execute(program, [FIVE])
    assert sorted(os.listdir(program.path.parent)) == before


# --- tools that are missing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("c", "c: cc is not installed (install it, on Debian: apt install gcc)"),
        (
            "cortex-m0",
            "cortex-m0: arm-none-eabi-gcc is not installed (install it, on Debian: apt install "
            "gcc-arm-none-eabi)",
        ),
        (
            "s390x",
            "s390x: s390x-linux-gnu-gcc is not installed (install it, on Debian: apt install "
            "gcc-s390x-linux-gnu libc6-dev-s390x-cross)",
        ),
    ],
)
def test_missing_compiler(name, reason, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert TARGETS[name].unavailable() == reason
    with pytest.raises(InputError) as error:
        build(tmp_path, TARGETS[name], tmp_path / "work", INTERFACE)
    assert str(error.value) == reason


def fake(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_features_that_a_processor_lacks(monkeypatch):
    monkeypatch.setattr(toolchain, "features", lambda: frozenset({"avx2", "bmi2"}))
    assert TARGETS["x86-64-v3"].unavailable() == (
        "x86-64-v3: this machine's processor has no fma, or does not say so"
    )
    assert "no sse4_2" in str(TARGETS["x86-64-v2"].unavailable())


def test_missing_emulator(tmp_path, monkeypatch):
    fake(tmp_path, "riscv64-linux-gnu-gcc", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert TARGETS["riscv64"].unavailable() == (
        "riscv64: qemu-riscv64 is not installed (install it, on Debian: apt install qemu-user)"
    )


def test_compiler_without_its_library(tmp_path, monkeypatch):
    fake(tmp_path, "s390x-linux-gnu-gcc", "echo '/ld: cannot find -lc' >&2; exit 1")
    fake(tmp_path, "qemu-s390x", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert TARGETS["s390x"].unavailable() == (
        "s390x: s390x-linux-gnu-gcc cannot link: /ld: cannot find -lc (install it, on Debian: apt "
        "install gcc-s390x-linux-gnu libc6-dev-s390x-cross)"
    )


def test_host_compiler_is_that_of_the_environment(tmp_path, monkeypatch):
    fake(tmp_path, "other", "exit 0")
    fake(tmp_path, "gcc", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "other")
    assert toolchain.host_compiler().path == str(tmp_path / "other")
    monkeypatch.delenv("CC")
    assert toolchain.host_compiler().command == "gcc"


def test_a_compiler_that_is_named_is_not_replaced_by_another(tmp_path, monkeypatch):
    fake(tmp_path, "gcc", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "absent")
    assert TARGETS["c"].unavailable() == (
        "c: absent is not installed (install it, on Debian: apt install absent)"
    )
    monkeypatch.setenv("CC", "gcc '")
    with pytest.raises(InputError, match=r"^\$CC: expected a compiler and its arguments, found"):
        TARGETS["c"].unavailable()


def test_a_compiler_with_arguments(tmp_path, monkeypatch):
    """$CC is a command, as make reads it: its arguments come first, also when availability is
    probed."""
    compiler = toolchain.host_compiler()
    skip_unless_available(host())
    fake(tmp_path, "recorded", f'echo "$@" >> {tmp_path}/calls\nexec {compiler.path} "$@"')
    monkeypatch.setenv("CC", f"'{tmp_path}/recorded' -DIT='an identity'")
    write_package(tmp_path / "package", IDENTITY)
    executable = build(tmp_path / "package", TARGETS["c"], tmp_path / "work", INTERFACE)
    assert executable.path.exists()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) >= 4  # two probes, an object, the program
    assert calls[0].startswith("-DIT=an identity -fsyntax-only ")
    assert all(call.startswith("-DIT=an identity -std=c99 ") for call in calls[1:])


def test_a_compiler_that_never_ends(tmp_path, monkeypatch):
    """It is waited for once, not for each target's flags."""
    fake(tmp_path, "endless", f'echo "$@" >> {tmp_path}/calls\nexec sleep 1000')
    monkeypatch.setenv("CC", f"{tmp_path}/endless")
    monkeypatch.setattr(toolchain, "ANSWER", 0.2)
    for target in (TARGETS["c"], host("cc", "-O3")):
        reason = str(target.unavailable())
        assert reason.startswith(f"{target.name}: expected '{tmp_path}/endless -fsyntax-only ")
        assert "to end within 0.2 seconds, found it still running; run it yourself" in reason
        with pytest.raises(InputError, match="found it still running"):
            build(tmp_path, target, tmp_path / "work", INTERFACE)
    assert (tmp_path / "calls").read_text() == "-fsyntax-only -x c -\n"


def test_an_emulator_that_never_ends(tmp_path, monkeypatch):
    fake(tmp_path, "arm-none-eabi-gcc", "exit 0")
    fake(tmp_path, "qemu-system-arm", f"echo >> {tmp_path}/calls\nexec /bin/sleep 1000")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "ANSWER", 0.2)
    for name in ("cortex-m0", "cortex-m3"):
        reason = str(TARGETS[name].unavailable())
        assert reason.startswith(f"{name}: expected '{tmp_path}/qemu-system-arm -machine help' to ")
    assert (tmp_path / "calls").read_text() == "\n"


def test_a_compiler_that_never_ends_with_a_package(tmp_path, monkeypatch):
    fake(tmp_path, "slow", 'case "$*" in *" -c "*) exec /bin/sleep 1000 ;; esac')
    monkeypatch.setenv("CC", f"{tmp_path}/slow")
    monkeypatch.setattr("samebits.codegen.run.execute.WORK", 0.2)
    write_package(tmp_path / "package", IDENTITY)
    with pytest.raises(InputError, match=r"slow -std=c99 .* \.\.\.' to end within 0.2 seconds"):
        build(tmp_path / "package", TARGETS["c"], tmp_path / "work", INTERFACE)


def test_flag_that_the_compiler_does_not_know():
    skip_unless_available(host())
    reason = host("cc", "-mno-such-flag").unavailable()
    assert reason is not None
    assert reason.startswith("cc -mno-such-flag: cc cannot link: ")


def test_companion():
    assert toolchain.companion("arm-none-eabi-gcc", "nm") == "arm-none-eabi-nm"
    assert toolchain.companion("/usr/bin/riscv64-linux-gnu-gcc", "nm") == "riscv64-linux-gnu-nm"
    assert [toolchain.companion(name, "nm") for name in ("cc", "gcc", "clang")] == ["nm"] * 3


def test_names_of_targets():
    assert list(TARGETS) == [target.name for target in TARGETS.values()]
    assert host("gcc", "-O3").name == "gcc -O3"
    assert valgrind("gcc").name == "valgrind gcc"
    assert TARGETS["cortex-m0"].with_flags("-O3").name == "cortex-m0 -O3"
    assert HEADER.count("model_run") == 1
