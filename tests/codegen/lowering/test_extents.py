"""The bound of all offsets: what lies just below it runs without overflow, the next is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from c_files import write_files
from samebits.codegen.blocks import STEPS, step_blocks
from samebits.codegen.call_text import Constants
from samebits.codegen.emit import constants_header, constants_source, source
from samebits.codegen.header import About, header
from samebits.codegen.lowering.calls import Data, KernelCall, Struct, Structs
from samebits.codegen.lowering.extents import LARGEST_EXTENT, check_call
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.memory import layout
from samebits.codegen.packaging.package import kernel_symbol, library
from samebits.errors import UnsupportedError
from samebits.ir import Graph, GraphBuilder
from shared_kernels import compile_c, shared_kernels

WIDTH, STRIDE = 1 << 18, 1 << 16  # four windows of one pixel in a row
ROWS = LARGEST_EXTENT // WIDTH  # of a padded image: the least that is too many


def padded(rows: int, channels: int = 1, *, data: bool = False) -> Graph:
    """A convolution of one code a window on one row of codes below rows - 1 rows of padding: its
    windows begin in the first and in the last row of the padded image."""
    g = GraphBuilder("padded")
    x = g.input("x", "int8", (1, 1, WIDTH // channels, channels))
    shape = (channels, 1, 1, 1)
    w = g.input("w", "int8", shape) if data else g.constant("w", np.ones(shape, np.int8))
    b = g.constant("b", np.zeros(channels, np.int32))
    pads, strides = (rows - 1, 0, 0, 0), (max(rows - 1, 1), STRIDE // channels)
    window = {"pads": pads, "strides": strides, "pad_code": 5, "groups": channels}
    return g.build([g.add("conv", [x, w, b], window)])


KERNELS = {"conv8": padded(ROWS - 1), "depthwise8": padded(ROWS - 1, 2)}
KERNELS["conv_any"] = padded(ROWS - 1, data=True)


def test_padded_images_below_the_bound_do_not_overflow(
    cc: str, tmp_path: Path, objects: Path
) -> None:
    flags = ("-O0", "-fsanitize=undefined,address", "-fno-sanitize-recover=all")
    kernels = shared_kernels(cc, tmp_path, objects, "portable", *flags)
    about, body = About("0", kernel_symbol()), []
    for name, graph in KERNELS.items():
        calls, constants = lower_to_calls(graph), Constants(name)
        assert [call.function for call in calls.entries[0].calls] == [name]
        memory = layout(calls)
        files = {
            f"{name}.h": header(calls, memory, None, name, about),
            f"{name}.c": source(calls, memory, None, name, about, constants, 0),
        }
        files[f"{name}_constants.h"] = constants_header(constants, name)
        files[f"{name}_constants.c"] = constants_source(constants, name)
        write_files(tmp_path, files)
        weight = "one, " if len(graph.inputs) > 1 else ""
        size = f"{name.upper()}_OUTPUT0_SIZE"
        body.append(
            f"    {{\n        {name.upper()}_INSTANCE(net);\n"
            f"        {name}_run(&net, x, {weight}y);\n"
            f'        for (i = 0; i < {size}; i++) printf("%d ", (int)y[i]);\n    }}\n'
        )
    included = [f'#include "{name}.c"\n#include "{name}_constants.c"\n' for name in KERNELS]
    (tmp_path / "all.c").write_text(
        f"""#include <stdio.h>
{"".join(included)}
static int8_t x[{WIDTH}];
static const int8_t one[1] = {{1}};
static int32_t y[16];
int main(void) {{
    int i;
    for (i = 0; i < {WIDTH}; i++) x[i] = (int8_t)(i / {STRIDE} + 1);
{"".join(body)}    return 0;
}}
"""
    )
    compile_c(cc, tmp_path, ["all.c", kernels], "all", "-I.", *flags)
    done = subprocess.run([tmp_path / "all"], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [*"55551234", *"5555555511223344", *"55551234"]


@pytest.mark.parametrize("channels", [1, 2])
def test_the_next_padded_image_is_refused(channels: int) -> None:
    with pytest.raises(
        UnsupportedError, match=f"a padded image of less .* found {LARGEST_EXTENT};"
    ):
        lower_to_calls(padded(ROWS, channels))


def weights(size: int) -> Data:
    """An array of `size` bytes that takes one."""
    return Data(np.broadcast_to(np.zeros(1, np.int8), (size,)))


def test_memory_of_a_kernel_is_below_the_bound() -> None:
    fits, too_large = LARGEST_EXTENT - 1, LARGEST_EXTENT
    for size in (fits, too_large):
        nested = Struct("rolled", {"conv": Struct("conv", {"weights": weights(size)})})
        listed = Struct(
            "broadcast", {"sources": Structs((Struct("source", {"x": weights(size)}),))}
        )
        for what, call in {
            "constant data": KernelCall("f", nested, ("x",)),
            "constant data ": KernelCall("f", listed, ("x",)),
            "scratch memory": KernelCall("f", Struct("conv", {}), ("x",), size),
        }.items():
            if size == fits:
                check_call(call, "y")
                continue
            with pytest.raises(
                UnsupportedError, match=rf"'y' \(f\): expected {what.strip()} of less"
            ):
                check_call(call, "y")


@pytest.mark.parametrize("depth", [LARGEST_EXTENT // 16 - 4, LARGEST_EXTENT // 16])
def test_a_block_of_weights_is_below_the_bound(depth: int) -> None:
    """Of 16 channels, in which the kernel counts, however few there are."""
    window = {
        "kernel_height": 1,
        "kernel_width": 1,
        "stride_y": 1,
        "stride_x": 1,
        "channels": depth,
    }
    window |= {
        "pad_top": 0,
        "pad_left": 0,
        "height": 1,
        "width": 1,
        "out_height": 1,
        "out_width": 1,
    }
    call = KernelCall("conv8", Struct("conv", {**window, "runs": 1, "length": depth}), ("x",))
    if depth < LARGEST_EXTENT // 16:
        check_call(call, "y")
    else:
        with pytest.raises(UnsupportedError, match="expected weights of less"):
            check_call(call, "y")


@pytest.mark.parametrize("size", [LARGEST_EXTENT // STEPS - 1, LARGEST_EXTENT // STEPS])
def test_blocks_of_steps_are_below_the_bound(size: int) -> None:
    """A step graph with a product that waits for no state, and an output of `size` codes."""
    g = GraphBuilder("large")
    x, s = g.input("x", "int8", (1, 4)), g.input("s", "int8", (1, size))
    g.initial.append("")
    w = g.constant("w", np.ones((2, 4), np.int8))
    total = g.add("linear", [x, w, g.constant("b", np.zeros(2, np.int32))])
    after = g.add("clip", [s], {"low": -5, "high": 5})
    calls = lower_to_calls(g.build([total, s, after]))
    assert (step_blocks(calls) is None) == (size * STEPS >= LARGEST_EXTENT)


def test_an_int_of_16_bits_is_refused(cc: str, tmp_path: Path) -> None:
    write_files(tmp_path, library())
    (tmp_path / "small.h").write_text(
        "#include <limits.h>\n#undef INT_MAX\n#define INT_MAX 32767\n"
    )
    command = [cc, "-fsyntax-only", "-include", "small.h", "samebits/samebits_kernels.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert done.returncode != 0
    assert "samebits needs an int of 32 bits" in done.stderr
