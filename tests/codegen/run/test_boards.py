"""Bare-metal boards: start-up, limits, counting, and what the program needs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hand_package import CODES, IDENTITY, build_body, skip_unless_available
from samebits.codegen.run import boards
from samebits.codegen.run.boards import Region
from samebits.codegen.run.execute import execute, instruction_count, stack_used
from samebits.codegen.run.footprint import float_symbols, object_sizes, section_sizes, stack_bound
from samebits.codegen.run.targets import TARGETS, host
from samebits.errors import InputError, SamebitsError, UnsupportedError

BOARDS = [name for name, target in TARGETS.items() if target.board]
FIVE = np.arange(5, dtype=np.int8)[:, None]


@pytest.fixture(params=BOARDS)
def target(request):
    return TARGETS[request.param]


def test_start_up_copies_data_and_clears_bss(target, tmp_path):
    state = "static int8_t data[3] = {7, 8, 9}; static int8_t zeroed[300];"
    body = """
    int i;
    *output0 = (int8_t)(*input0 + data[0] + data[2] - 16);
    for (i = 0; i < 300; ++i) {
        *output0 = (int8_t)(*output0 + zeroed[i]);
    }
    data[0] = 7;
    """
    program = build_body(body, target, tmp_path, state)
    assert execute(program, [FIVE])[0].tolist() == FIVE.tolist()


def test_memory_functions(target, tmp_path):
    state = """
    #include <stddef.h>
    void *memcpy(void *restrict to, const void *restrict from, size_t size);
    void *memmove(void *to, const void *from, size_t size);
    void *memset(void *to, int byte, size_t size);
    int memcmp(const void *a, const void *b, size_t size);
    static volatile size_t one = 1;
    """
    body = """
    char text[9] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 0};
    char other[9];
    int8_t good = 1;
    memset(other, '.', 9 * one);
    good = (int8_t)(good && memcmp(other, ".........", 9 * one) == 0);
    memcpy(other, text, 9 * one);
    good = (int8_t)(good && memcmp(other, "abcdefgh", 8 * one) == 0);
    memmove(other + 2, other, 6 * one);
    good = (int8_t)(good && memcmp(other, "ababcdef", 8 * one) == 0);
    memmove(other, other + 2, 6 * one);
    good = (int8_t)(good && memcmp(other, "abcdefef", 8 * one) == 0);
    good = (int8_t)(good && memcmp("a", "b", one) < 0 && memcmp("\\377", "a", one) > 0);
    *output0 = (int8_t)(*input0 * good);
    """
    program = build_body(body, target, tmp_path, state)
    assert execute(program, [FIVE])[0].tolist() == FIVE.tolist()


# --- counting -------------------------------------------------------------------------------------


def test_instruction_count_is_exact(target, tmp_path):
    def counted(number: int) -> list[int]:
        body = f'__asm__ volatile(".rept {number}\\n\\tnop\\n\\t.endr"); {IDENTITY}'
        return instruction_count(build_body(body, target, tmp_path / f"{number}"), [FIVE])

    (least,) = set(counted(0))
    assert [set(counted(number)) for number in (1, 1000)] == [{least + 1}, {least + 1000}]


def test_instruction_count_of_one_processor_is_that_of_another_board(tmp_path):
    body = "int i; *output0 = 0; for (i = 0; i < *input0; ++i) { *output0 += (int8_t)(i * i); }"
    body = body.replace("+= (int8_t)(i * i)", "= (int8_t)(*output0 + i * i)")
    counts = []
    for name in ("cortex-m0", "cortex-m0-large"):
        program = build_body(body, TARGETS[name], tmp_path / name)
        counts.append(instruction_count(program, [FIVE]))
        assert counts[-1] == instruction_count(program, [FIVE])
    assert counts[0] == counts[1] == sorted(set(counts[0]))  # more turns, more instructions


@pytest.mark.slow
def test_instruction_count_that_the_timer_cannot_tell(target, tmp_path):
    # With the fastest clock of the emulator a count of 2**28 is too much, and is soon reached.
    fast = dataclasses.replace(target.board, icount_shift=10)
    target = dataclasses.replace(target, board=fast)
    body = 'uint32_t i; for (i = 0; i < 90000000u; ++i) { __asm__ volatile("nop\\n\\tnop"); }'
    program = build_body(body + IDENTITY, target, tmp_path)
    with pytest.raises(UnsupportedError, match="expected runs of fewer instructions"):
        instruction_count(program, [FIVE[:1]])


def test_instruction_count_needs_a_board_without_trace(tmp_path):
    program = build_body(IDENTITY, host(), tmp_path / "host")
    with pytest.raises(UnsupportedError, match="found cc"):
        instruction_count(program, [FIVE])
    with pytest.raises(UnsupportedError, match="to measure the stack of; found cc"):
        stack_used(program, [FIVE])
    with pytest.raises(UnsupportedError, match="found cc"):
        section_sizes(program)
    with pytest.raises(UnsupportedError, match="found cc"):
        stack_bound(program)


# --- limits ---------------------------------------------------------------------------------------


def test_too_large_for_the_microbit(tmp_path):
    state = "static volatile int8_t arena[20000];"
    body = "arena[*input0 & 63] = *input0; *output0 = arena[*input0 & 31];"
    with pytest.raises(InputError) as error:
        build_body(body, TARGETS["cortex-m0"], tmp_path / "a", state)
    needed = 20000 + 2048 + 8  # arena, stack; input and output, aligned
    assert str(error.value) == (
        "cortex-m0: expected a model that fits the board microbit, found one that needs "
        f"{needed} bytes of RAM, it has 16384; take cortex-m0-large, or a smaller model"
    )
    build_body(body, TARGETS["cortex-m0-large"], tmp_path / "b", state)
    flash = "extern const int8_t table[300000]; const int8_t table[300000] = {1};"
    with pytest.raises(InputError, match=r"needs 30\d+ bytes of FLASH, it has 262144; take"):
        build_body("*output0 = table[*input0];", TARGETS["cortex-m0"], tmp_path / "c", flash)


def test_program_fills_the_board_to_the_last_byte(tmp_path):
    body = "arena[*input0 & 63] = *input0; *output0 = arena[*input0 & 63];"
    target = TARGETS["cortex-m0"]
    used = section_sizes(build_body(IDENTITY, target, tmp_path / "a")).ram
    room = target.board.ram.bytes - used
    program = build_body(body, target, tmp_path / "b", f"static volatile int8_t arena[{room}];")
    assert section_sizes(program).ram == target.board.ram.bytes
    assert execute(program, [FIVE])[0].tolist() == FIVE.tolist()


DEEP = """
int8_t deep(volatile int8_t *below, int depth);
int8_t deep(volatile int8_t *below, int depth)
{
    volatile int8_t frame[64];
    frame[0] = below[0];
    return depth > 0 ? (int8_t)(deep(frame, depth - 1) + frame[0] - frame[0]) : frame[0];
}
"""


def test_stack_overflow_is_told(target, tmp_path):
    body = "volatile int8_t code = *input0; *output0 = deep(&code, {});"
    fits = build_body(body.format(8), target, tmp_path / "a", DEEP)
    assert execute(fits, [FIVE])[0].tolist() == FIVE.tolist()
    assert 8 * 64 < stack_used(fits, [FIVE]) < target.board.stack
    for depth in (target.board.stack // 64, 100000)[target.name != "cortex-m0" :]:
        program = build_body(body.format(depth), target, tmp_path / f"{depth}", DEEP)
        with pytest.raises(SamebitsError, match=rf"{target.name}: .* overflowed its stack"):
            execute(program, [FIVE])
    with pytest.raises(UnsupportedError, match="expected no recursion, found that of deep"):
        stack_bound(fits)


def test_fault_is_told(target, tmp_path):
    body = "*(volatile uint32_t *)UINT32_C(0xE1000000) = 1; *output0 = *input0;"
    program = build_body(body, target, tmp_path)
    with pytest.raises(SamebitsError, match=f"{target.name}: .* hit a processor fault"):
        execute(program, [FIVE])


def test_stack_bound_holds(target, tmp_path):
    state = """
    int8_t low(const volatile int8_t *codes);
    int8_t high(int8_t code);
    __attribute__((noinline)) int8_t low(const volatile int8_t *codes)
    {
        volatile int8_t frame[100];
        frame[99] = codes[0];
        return frame[99];
    }
    __attribute__((noinline)) int8_t high(int8_t code)
    {
        volatile int8_t frame[200];
        frame[0] = code;
        return (int8_t)(low(frame) + frame[0] - code);
    }
    """
    program = build_body("*output0 = high(*input0);", target, tmp_path, state)
    assert execute(program, [FIVE])[0].tolist() == FIVE.tolist()
    bound = stack_bound(program)
    assert bound.unknown == ()
    # The lowest words of a frame may never be written; the frames above are the harness's.
    assert 300 <= bound.bytes <= stack_used(program, [FIVE]) + 64 <= bound.bytes + 256
    assert 100 <= stack_bound(program, "low").bytes < 200 <= stack_bound(program, "high").bytes
    with pytest.raises(InputError, match="expected a function of the program, found 'none'"):
        stack_bound(program, "none")


# --- what the program holds -----------------------------------------------------------------------


def test_section_sizes(target, tmp_path):
    state = "extern const int8_t table[1000]; const int8_t table[1000] = {1};"
    state += " static volatile int8_t a[500];"
    body = "a[*input0 & 3] = 1; *output0 = (int8_t)(table[*input0 & 7] * a[*input0 & 3]);"
    plain = section_sizes(build_body(IDENTITY, target, tmp_path / "a"))
    sizes = section_sizes(build_body(body, target, tmp_path / "b", state))
    assert sizes.stack == target.board.stack
    assert 1000 <= sizes.flash - plain.flash < 1200
    assert 496 <= sizes.ram - plain.ram < 512  # whole words of 8 bytes
    assert plain.flash < 1500


def test_object_sizes(tmp_path):
    state = "extern const int8_t table[1000]; const int8_t table[1000] = {1};"
    body = "*output0 = table[*input0 & 7];"
    sizes = object_sizes(build_body(body, TARGETS["cortex-m3"], tmp_path, state))
    assert set(sizes) == {"main.o", "memory.o", "model.o", "startup.o"}
    assert 1000 < sizes["model.o"].flash < 1100
    assert sizes["model.o"].ram == 0


FLOATS = {
    "float product": "*output0 = (int8_t)((float)*input0 * 0.3f);",
    "double sum": "*output0 = (int8_t)((double)*input0 + 0.3);",
    "division": "*output0 = (int8_t)(1.0f / (float)*input0);",
    "comparison": "*output0 = (float)*input0 * 0.1f > 0.3f;",
    "long to double": "*output0 = (int8_t)((double)((int64_t)*input0 << 33) * 0.1);",
}


@pytest.mark.parametrize("body", FLOATS.values(), ids=FLOATS.keys())
@pytest.mark.parametrize("name", ["cortex-m0", "cortex-m3"])
def test_float_symbols_are_found(name, body, tmp_path):
    assert float_symbols(build_body(body, TARGETS[name], tmp_path))


def test_integer_routines_are_no_float_symbols(target, tmp_path):
    body = """
    const int64_t wide = (int64_t)*input0 * 1000000007 << (*input0 & 15);
    const uint64_t plain = (uint64_t)wide;
    *output0 = (int8_t)(wide / (*input0 + 300) + wide % 7 + (int64_t)(plain / 11u % 13u)
                        + *input0 / 5 + (int32_t)((uint32_t)*input0 % 9u)
                        + (wide >> (*input0 & 7)));
    """
    assert float_symbols(build_body(body, target, tmp_path)) == []


def test_libm_is_a_float_symbol(tmp_path):
    state = "double exp(double x); double exp(double x) { return x; }"
    program = build_body("*output0 = *input0;", host(), tmp_path, state)
    assert float_symbols(program) == ["exp"]


# --- data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOARDS)
def test_counts_are_exact_by_the_clock(name):
    # An instruction must be more than two ticks of the timer: the nearest integer is then right.
    board = TARGETS[name].board
    assert board.timer_hz << board.icount_shift > 2 * 10**9


def test_linker_script_golden(golden):
    golden("tests/golden/codegen/mps3-an547.ld", boards.linker_script(boards.MPS3_AN547))
    golden("tests/golden/codegen/microbit.ld", boards.linker_script(boards.MICROBIT))


def test_exit_codes_are_those_of_the_header():
    text = (boards.FOLDER / "harness.h").read_text()
    names = ("NO_FILE", "SHORT_INPUT", "NO_OUTPUT", "STACK_OVERFLOW", "FAULT")
    assert list(boards.EXIT_CODES) == [
        int(text.split(f"EXIT_{name} = ")[1].split("\n")[0].rstrip(",")) for name in names
    ]


def test_a_board_that_the_emulator_does_not_know():
    board = dataclasses.replace(boards.MICROBIT, machine="nothing", ram=Region(0x20000000, 64))
    target = dataclasses.replace(TARGETS["cortex-m0"], board=board)
    skip_unless_available(TARGETS["cortex-m0"])
    assert target.unavailable() == (
        "cortex-m0: this qemu-system-arm has no machine nothing; expected version 7.0 or newer"
    )


def test_every_code_of_a_byte(target, tmp_path):
    program = build_body(IDENTITY, target, tmp_path)
    assert execute(program, [CODES[:, None]])[0].reshape(-1).tolist() == CODES.tolist()
