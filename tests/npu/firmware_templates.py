"""The example firmware for every native dimension: its text with addresses, counts, depths and
steps as expressions of the vectors that its tensors take.

`firmware(name, native, mantissa, requantize)` is examples/firmware/NAME.nnp as it is written where
native = 16, mantissa = 15 and requantize = 0. Comments are in the examples. requantize = 1 sets the
register for all of a program; with 0 it is as in the example: the first layer of `mlp_softmax`
re-quantizes in both. Tensors are those of the examples' memory images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from samebits.npu.machine.assembly import parse
from samebits.npu.machine.image import pack, pack_tiles
from samebits.npu.machine.program import TILE_FILES, Hint, Image, Program

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "firmware"


def firmware(name: str, native: int, mantissa: int, requantize: int) -> tuple[Program, Image]:
    """One of TEMPLATES with its memory image. Legal for every native dimension and mantissa."""
    settings = f".native {native}\n.mantissa {mantissa}\n"
    program = parse(settings + TEMPLATES[name](native, requantize), f"{name}_{native}")
    entries: dict[str, dict[int, np.ndarray]] = {}
    for hint in program.hints:
        if hint.kind == "tensor":
            layout = pack_tiles if hint.memory in TILE_FILES else pack
            packed = layout(contents(name, hint), native)
            entries.setdefault(hint.memory, {}).update(enumerate(packed, hint.address))
    return program, Image(entries)


def contents(name: str, hint: Hint) -> np.ndarray:
    """The example's tensor; where the hint has more columns, [x; h] with zeros between its parts.

    `gru` multiplies x and h by one matrix: h begins a native vector of its own.
    """
    array = image(name)[f"{hint.memory}/{hint.name}"]
    if array.shape == hint.shape:
        return array
    outputs, columns = array.shape
    gap = np.zeros((outputs, hint.shape[1] - columns), array.dtype)
    return np.concatenate([array[:, :16], gap, array[:, 16:]], axis=1)


@cache
def image(name: str) -> dict[str, np.ndarray]:
    """The logical tensors of an example by "MEMORY/NAME"."""
    return load_file(FOLDER / f"{name}.safetensors")


def vectors(channels: int, native: int) -> int:
    """Native vectors that one pixel, step or vector of so many channels takes."""
    return -(-channels // native)


def write(register: str, value: int, held: int) -> str:
    """The instruction that writes a register, or nothing where it holds the value already."""
    return "" if value == held else f"s_wr {register}, {value}"


# --- the programs -----------------------------------------------------------------------------


def mlp_softmax(native: int, requantize: int) -> str:
    x, one, two, out = (vectors(channels, native) for channels in (50, 40, 24, 10))
    return f"""
.depth ivrf {one + two}
.depth asvrf0 {one + two + out}
.depth mrf {max(one * x, two * one, out * two)}
.depth mdram {one * x + two * one + out * two}

;! input  x      50
;! output scores 10
;! tensor w1 mdram  0 40x50
;! tensor w2 mdram  {one * x} 24x40
;! tensor w3 mdram  {one * x + two * one} 10x24
;! tensor b1 asvrf0 0 40
;! tensor b2 asvrf0 {one} 24
;! tensor b3 asvrf0 {one + two} 10

s_wr rows, {one}
s_wr columns, {x}
m_rd mdram, 0
m_wr mrf, 0
end_chain

s_wr requantize, 1
v_rd netq
mv_mul 0
vv_add asvrf0, 0
v_relu
v_wr ivrf, 0
end_chain
s_wr requantize, {requantize}

s_wr rows, {two}
s_wr columns, {one}
m_rd mdram, {one * x}
m_wr mrf, 0
end_chain
v_rd ivrf, 0
mv_mul 0
vv_add asvrf0, {one}
v_relu
v_wr ivrf, {one}
end_chain

s_wr rows, {out}
s_wr columns, {two}
m_rd mdram, {one * x + two * one}
m_wr mrf, 0
end_chain
v_rd ivrf, {one}
mv_mul 0
vv_add asvrf0, {one + two}
v_wr netq
end_chain
"""


def conv1x1(native: int, requantize: int) -> str:
    x, y = vectors(20, native), vectors(24, native)
    return f"""
.depth asvrf0 {y}
.depth mrf {y * x}

;! input  x 20x5x6
;! output y 24x5x6
;! tensor w mrf    0 24x20
;! tensor b asvrf0 0 24

{write("requantize", requantize, 0)}
s_wr rows, {y}
s_wr columns, {x}
s_wr iterations, 30
v_rd netq
mv_mul 0
vv_add asvrf0, 0
v_relu
v_wr netq
end_chain
"""


def conv3x3_stride2(native: int, requantize: int) -> str:
    x, y = vectors(20, native), vectors(24, native)
    row = 11 * x  # of the frame
    return f"""
.depth dram {9 * row}
.depth asvrf0 {y}
.depth mrf {y * 9 * x}

;! input  x 20x7x9
;! output y 24x4x5
;! tensor frame dram   0 20x9x11
;! tensor w     mrf    0 24x20x3x3
;! tensor b     asvrf0 0 24

{write("requantize", requantize, 0)}
s_wr rows, {x}
s_wr iterations, 63
s_wr iterations_x, 9
v_rd netq
v_wr_inc dram, {row + x}, {x}, {row}
end_chain

{write("rows", y, x)}
s_wr columns, {9 * x}
s_wr iterations, 20
s_wr iterations_x, 5
s_wr window, 3
s_wr window_run, {3 * x}
s_wr window_pitch, {row}
v_rd_inc dram, 0, {2 * x}, {2 * row}
mv_mul 0
vv_add asvrf0, 0
v_relu
v_wr netq
end_chain
"""


def residual_maxpool(native: int, requantize: int) -> str:
    c = vectors(16, native)
    return f"""
.depth ivrf {164 * c}
.depth asvrf0 {47 * c}
.depth asvrf1 {72 * c}
.depth mrf {18 * c * c}

;! input  x 16x6x6
;! output z 16x3x3
;! tensor frame1 ivrf   0 16x8x8
;! tensor frame2 ivrf   {64 * c} 16x8x8
;! tensor w1     mrf    0 16x16x3x3
;! tensor w2     mrf    {9 * c * c} 16x16x3x3
;! tensor b1     asvrf0 0 16
;! tensor b2     asvrf0 {c} 16

; ivrf:   0 frame of x   {64 * c} frame of the hidden image   {128 * c} y
; asvrf0: 0 b1   {c} b2   {2 * c} y again   {38 * c} maxima of three
; asvrf1: 0 x again   {36 * c} y once more

{write("requantize", requantize, 0)}
{write("rows", c, 1)}
s_wr iterations, 36
s_wr iterations_x, 6
v_rd netq
v_wr_inc ivrf, {9 * c}, {c}, {8 * c}
v_wr_inc asvrf1, 0, {c}, {6 * c}
end_chain

s_wr columns, {9 * c}
s_wr window, 3
s_wr window_run, {3 * c}
s_wr window_pitch, {8 * c}
v_rd_inc ivrf, 0, {c}, {8 * c}
mv_mul 0
vv_add asvrf0, 0
v_relu
v_wr_inc ivrf, {(64 + 9) * c}, {c}, {8 * c}
end_chain

v_rd_inc ivrf, {64 * c}, {c}, {8 * c}
mv_mul {9 * c * c}
vv_add asvrf0, {c}
vv_add_inc asvrf1, 0, {c}, {6 * c}
v_relu
v_wr_inc ivrf, {128 * c}, {c}, {6 * c}
v_wr_inc asvrf0, {2 * c}, {c}, {6 * c}
v_wr_inc asvrf1, {36 * c}, {c}, {6 * c}
end_chain

s_wr columns, 1
s_wr window, 1
s_wr window_run, 1
s_wr iterations, 9
s_wr iterations_x, 3
v_rd_inc ivrf, {128 * c}, {2 * c}, {12 * c}
vv_max_inc asvrf0, {(2 + 1) * c}, {2 * c}, {12 * c}
vv_max_inc asvrf1, {(36 + 6) * c}, {2 * c}, {12 * c}
v_wr_inc asvrf0, {38 * c}, {c}, {3 * c}
end_chain
v_rd_inc ivrf, {(128 + 6 + 1) * c}, {2 * c}, {12 * c}
vv_max_inc asvrf0, {38 * c}, {c}, {3 * c}
v_wr netq
end_chain
"""


def average_pool(native: int, requantize: int) -> str:
    c = vectors(24, native)
    return f"""
.depth ivrf {24 * c}
.depth asvrf0 {(24 + 6) * c}
.depth asvrf1 {24 * c}
.depth mvrf0 {c}

;! input  x 24x4x6
;! output y 24x2x3
;! tensor quarter mvrf0 0 24

{write("requantize", requantize, 0)}
s_wr rows, {c}
s_wr iterations, 24
s_wr iterations_x, 6
v_rd netq
v_wr_inc ivrf, 0, {c}, {6 * c}
v_wr_inc asvrf0, 0, {c}, {6 * c}
v_wr_inc asvrf1, 0, {c}, {6 * c}
end_chain

s_wr iterations, 6
s_wr iterations_x, 3
v_rd_inc ivrf, 0, {2 * c}, {12 * c}
vv_add_inc asvrf0, {c}, {2 * c}, {12 * c}
vv_add_inc asvrf1, {6 * c}, {2 * c}, {12 * c}
v_wr_inc asvrf0, {24 * c}, {c}, {3 * c}
end_chain

v_rd_inc ivrf, {(6 + 1) * c}, {2 * c}, {12 * c}
vv_add_inc asvrf0, {24 * c}, {c}, {3 * c}
vv_mul mvrf0, 0
v_wr netq
end_chain
"""


def lstm(native: int, requantize: int) -> str:
    x, h = vectors(20, native), vectors(40, native)
    from_x, from_h = h * x, h * h  # tiles of a matrix
    w_h = 4 * from_x
    return f"""
.depth ivrf {x + 3 * h}
.depth asvrf0 {9 * h}
.depth mvrf1 {3 * h}
.depth mrf {w_h + 4 * from_h}

;! input  x 12x20
;! output y 12x40
;! tensor w_xi mrf 0 40x20
;! tensor w_xf mrf {from_x} 40x20
;! tensor w_xo mrf {2 * from_x} 40x20
;! tensor w_xg mrf {3 * from_x} 40x20
;! tensor w_hi mrf {w_h} 40x40
;! tensor w_hf mrf {w_h + from_h} 40x40
;! tensor w_ho mrf {w_h + 2 * from_h} 40x40
;! tensor w_hg mrf {w_h + 3 * from_h} 40x40
;! tensor b_i asvrf0 0 40
;! tensor b_f asvrf0 {h} 40
;! tensor b_o asvrf0 {2 * h} 40
;! tensor b_g asvrf0 {3 * h} 40
;! tensor h ivrf  {x} 40
;! tensor c mvrf1 {2 * h} 40

; ivrf:   0 x   {x} h   {x + h} i * g   {x + 2 * h} c
; asvrf0: 0 b_i ...   {4 * h} the input's parts of i, f, o, g   {8 * h} f * c
; mvrf1:  0 i   {h} o   {2 * h} c

{write("requantize", requantize, 0)}
loop 12

s_wr rows, {x}
v_rd netq
v_wr ivrf, 0
end_chain

s_wr rows, {h}
s_wr columns, {x}
v_rd ivrf, 0
mv_mul 0
vv_add asvrf0, 0
v_wr asvrf0, {4 * h}
end_chain
v_rd ivrf, 0
mv_mul {from_x}
vv_add asvrf0, {h}
v_wr asvrf0, {5 * h}
end_chain
v_rd ivrf, 0
mv_mul {2 * from_x}
vv_add asvrf0, {2 * h}
v_wr asvrf0, {6 * h}
end_chain
v_rd ivrf, 0
mv_mul {3 * from_x}
vv_add asvrf0, {3 * h}
v_wr asvrf0, {7 * h}
end_chain

s_wr columns, {h}
v_rd ivrf, {x}
mv_mul {w_h}
vv_add asvrf0, {4 * h}
v_sigm
v_wr mvrf1, 0
end_chain
v_rd ivrf, {x}
mv_mul {w_h + 2 * from_h}
vv_add asvrf0, {6 * h}
v_sigm
v_wr mvrf1, {h}
end_chain

v_rd ivrf, {x}
mv_mul {w_h + from_h}
vv_add asvrf0, {5 * h}
v_sigm
vv_mul mvrf1, {2 * h}
v_wr asvrf0, {8 * h}
end_chain

v_rd ivrf, {x}
mv_mul {w_h + 3 * from_h}
vv_add asvrf0, {7 * h}
v_tanh
vv_mul mvrf1, 0
v_wr ivrf, {x + h}
end_chain

v_rd ivrf, {x + h}
vv_add asvrf0, {8 * h}
v_wr mvrf1, {2 * h}
v_wr ivrf, {x + 2 * h}
end_chain

v_rd ivrf, {x + 2 * h}
v_tanh
vv_mul mvrf1, {h}
v_wr ivrf, {x}
v_wr netq
end_chain

end_loop
"""


def gru(native: int, requantize: int) -> str:
    x, h = vectors(16, native), vectors(20, native)
    both = h * (x + h)  # tiles of a matrix for [x; h]
    columns = x * native + 20  # of it: h begins a vector
    return f"""
.depth ivrf {x + 2 * h}
.depth asvrf0 {5 * h}
.depth asvrf1 {2 * h}
.depth mvrf0 {2 * h}
.depth mrf {2 * both + h * x + h * h}

;! input  x 10x16
;! output y 10x20
;! tensor w_z  mrf 0 20x{columns}
;! tensor w_r  mrf {both} 20x{columns}
;! tensor w_xn mrf {2 * both} 20x16
;! tensor w_hn mrf {2 * both + h * x} 20x20
;! tensor b_z  asvrf0 0 20
;! tensor b_r  asvrf0 {h} 20
;! tensor b_xn asvrf0 {2 * h} 20
;! tensor b_hn asvrf0 {3 * h} 20
;! tensor h         ivrf   {x} 20
;! tensor h_operand asvrf0 {4 * h} 20

; ivrf:   0 x   {x} h   {x + h} n
; asvrf0: 0 b_z   {h} b_r   {2 * h} b_xn   {3 * h} b_hn   {4 * h} h again, an operand
; asvrf1: 0 the input's part of n   {h} n again
; mvrf0:  0 z   {h} r

{write("requantize", requantize, 0)}
loop 10

s_wr rows, {x}
v_rd netq
v_wr ivrf, 0
end_chain
s_wr rows, {h}

s_wr columns, {x + h}
v_rd ivrf, 0
mv_mul 0
vv_add asvrf0, 0
v_sigm
v_wr mvrf0, 0
end_chain
v_rd ivrf, 0
mv_mul {both}
vv_add asvrf0, {h}
v_sigm
v_wr mvrf0, {h}
end_chain

s_wr columns, {x}
v_rd ivrf, 0
mv_mul {2 * both}
vv_add asvrf0, {2 * h}
v_wr asvrf1, 0
end_chain

s_wr columns, {h}
v_rd ivrf, {x}
mv_mul {2 * both + h * x}
vv_add asvrf0, {3 * h}
vv_mul mvrf0, {h}
vv_add asvrf1, 0
v_tanh
v_wr ivrf, {x + h}
v_wr asvrf1, {h}
end_chain

v_rd ivrf, {x + h}
vv_b_sub_a asvrf0, {4 * h}
vv_mul mvrf0, 0
vv_add asvrf1, {h}
v_wr ivrf, {x}
v_wr netq
end_chain
v_rd ivrf, {x}
v_wr asvrf0, {4 * h}
end_chain

end_loop
"""


TEMPLATES: dict[str, Callable[[int, int], str]] = {
    template.__name__: template
    for template in (
        mlp_softmax,
        conv1x1,
        conv3x3_stride2,
        residual_maxpool,
        average_pool,
        lstm,
        gru,
    )
}
