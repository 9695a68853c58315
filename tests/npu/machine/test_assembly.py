"""Assembler, disassembler and binary coder: round trips of legal programs, messages of others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.programs import random_case
from samebits.errors import InputError
from samebits.npu.machine import assembly
from samebits.npu.machine.assembly import hint_text, instruction_text, parse, to_text
from samebits.npu.machine.isa import ADDRESSES, COUNTS, INSTRUCTIONS, LIMITS, STEP, Operand, fault
from samebits.npu.machine.program import (
    DEPTH_MAX,
    INSTRUCTIONS_MAX,
    MEMORIES,
    QUEUE,
    REGISTERS,
    TILE_FILES,
    Hint,
    Instruction,
    Program,
)
from samebits.npu.machine.words import from_words, to_words

STORED = tuple(name for name in MEMORIES if name != QUEUE)


def within(limits: range) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([limits[0], limits[-1]]), st.integers(limits[0], limits[-1]))


@st.composite
def instructions(draw) -> Instruction:
    """Any legal instruction."""
    record = INSTRUCTIONS[draw(st.sampled_from(list(INSTRUCTIONS)))]
    fields: dict[str, object] = {}
    if Operand.MEMORY in record.operands:
        fields["memory"] = draw(st.sampled_from(record.memories))
    if Operand.ADDRESS in record.operands or fields.get("memory", QUEUE) != QUEUE:
        fields["address"] = draw(within(ADDRESSES))
    if record.steps:
        fields["steps"] = draw(within(STEP)), draw(within(STEP))
    if Operand.REGISTER in record.operands:
        fields["register"] = draw(st.sampled_from(list(REGISTERS)))
    if Operand.VALUE in record.operands:
        fields["value"] = draw(within(LIMITS[fields["register"]]))
    if Operand.COUNT in record.operands:
        fields["value"] = draw(within(COUNTS))
    if Operand.UNIT in record.operands:
        fields["unit"] = draw(st.sampled_from([None, 0, 1]))
    return Instruction(record.name, **fields)


NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,63}\Z")


@st.composite
def hints(draw) -> Hint:
    kind = draw(st.sampled_from(["input", "output", "tensor"]))
    memory = draw(st.sampled_from(STORED)) if kind == "tensor" else QUEUE
    address = draw(within(ADDRESSES)) if kind == "tensor" else 0
    rank = draw(st.sampled_from([2, 4] if memory in TILE_FILES else [1, 2, 3]))
    shape = tuple(draw(within(range(1, (1 << 20) + 1))) for _ in range(rank))
    return Hint(kind, draw(NAMES), shape, memory, address)


@st.composite
def programs(draw) -> Program:
    depths = draw(st.dictionaries(st.sampled_from(STORED), within(range(1, DEPTH_MAX + 1))))
    return Program(
        draw(st.integers(8, 512)),
        draw(st.integers(2, 15)),
        depths,
        tuple(draw(st.lists(instructions(), max_size=30))),
        tuple(draw(st.lists(hints(), max_size=5))),
    )


def unplaced(program: Program) -> Program:
    """Without the lines it was read from."""
    return replace(
        program,
        instructions=tuple(replace(i, line=0) for i in program.instructions),
        hints=tuple(replace(h, line=0) for h in program.hints),
    )


# --- round trips ------------------------------------------------------------------------------


@given(instructions())
def test_what_is_generated_is_legal(instruction):
    assert fault(instruction) is None


@given(programs())
def test_text_round_trip(program):
    text = to_text(program)
    again = parse(text)
    assert unplaced(again) == program
    assert to_text(again) == text


@given(programs())
def test_words_round_trip(program):
    words = to_words(program)
    assert all(0 <= word < 1 << 32 for word in words)
    again = from_words(words, program.native, program.mantissa, program.depths)
    assert unplaced(again) == replace(program, hints=())
    assert to_words(again) == words
    assert to_words(parse(to_text(program))) == words


@settings(max_examples=500)
@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=3))
def test_words_have_one_meaning_or_none(words):
    """Any words are refused, or are what the coder writes for the program they say."""
    try:
        program = from_words(words, 8, 2, {})
    except InputError:
        return
    assert to_words(program) == tuple(words)


@given(instructions(), st.integers(0, 31))
def test_a_flipped_bit_is_refused_or_means_something_else(instruction, bit):
    words = list(to_words(Program(8, 2, {}, (instruction,))))
    words[0] ^= 1 << bit
    try:
        program = from_words(words, 8, 2, {})
    except InputError as error:
        assert str(error).startswith("program: word ")  # noqa: PT017
        return
    assert to_words(program) == tuple(words)
    assert unplaced(program).instructions != (instruction,)


@pytest.mark.parametrize("seed", range(10))
def test_random_legal_programs(seed):
    program = random_case(seed).program
    assert unplaced(parse(to_text(program), program.name)) == unplaced(program)


def test_lines_are_kept():
    program = parse("; a\n\n.native 8\r\n\tloop 3 ; b\n ;! input x 3\nend_loop\n")
    assert [i.line for i in program.instructions] == [4, 6]
    assert program.hints == (Hint("input", "x", (3,), line=5),)


def test_written_form():
    text = (
        ".native 16\n.mantissa 7\n.depth dram 9\n;! tensor w dram 3 2x20\nloop 2\n"
        "    v_rd_inc dram, 3, -1, 4\n    v_relu\n    v_tanh 1\n    v_wr netq\n    end_chain\n"
        "end_loop\n"
    )
    assert to_text(parse(text)) == text


def test_a_hint_may_follow_an_instruction_and_be_followed_by_a_comment():
    program = parse(".native 8\nend_chain ;! output y 4x5x6 ; the result")
    assert program.instructions == (Instruction("end_chain", line=2),)
    assert program.hints == (Hint("output", "y", (4, 5, 6), line=2),)


def test_comments_may_hold_anything():
    assert parse(".native 8 ; .native 9 é \x00 \u2028 ,,").native == 8


def test_known_words():
    program = parse(".native 8\nv_rd_inc dram, 5, -1, 2\nv_sigm 1\nv_relu\ns_wr window, 3")
    assert [f"{word:08X}" for word in to_words(program)] == [
        *("8D400005", "FFFF0002"),
        *("38400000", "37C00000", "05000003"),
    ]


def test_texts_of_parts():
    assert instruction_text(Instruction("v_wr", QUEUE)) == "v_wr netq"
    assert instruction_text(Instruction("v_relu")) == "v_relu"
    assert hint_text(Hint("output", "y", (3, 4))) == ";! output y 3x4"


# --- messages of text -------------------------------------------------------------------------

ALL_STORED = ", ".join(STORED)
DECIMAL = "write a decimal integer"
LISTED = "docs/spec/isa.md lists the instructions"
COMMAS = "separate operands by commas"
MESSAGES = [
    ("nop", "1: expected an instruction, found 'nop'; " + LISTED),
    ("  V_RD ivrf, 0", "3: expected an instruction, found 'V_RD'; " + LISTED),
    ("mv_mul_inc 0, 1, 1", "1: expected an instruction, found 'mv_mul_inc'; " + LISTED),
    (", v_rd", "1: expected an instruction, found ','; " + LISTED),
    ("v_rd\u00a0ivrf, 0", "1: expected an instruction, found 'v_rd\\xa0ivrf'; " + LISTED),
    ("v_rd", "5: expected a memory (ivrf, dram, netq), found the end of the line; "
     "v_rd takes no other"),
    ("v_rd mrf, 0", "6: expected a memory (ivrf, dram, netq), found 'mrf'; v_rd takes no other"),
    ("v_rd_inc netq, 0, 1, 1", "10: expected a memory (ivrf, dram), found 'netq'; "
     "v_rd_inc takes no other"),
    ("v_rd ivrf 0", "11: expected a comma, found '0'; " + COMMAS),
    ("v_rd ivrf  ; c", "10: expected a comma, found the end of the line; " + COMMAS),
    ("v_rd ivrf,, 0", "11: expected an address from 0 to 1048575, found ','; " + DECIMAL),
    ("v_rd ivrf, -1", "12: expected an address from 0 to 1048575, found '-1'; " + DECIMAL),
    ("v_rd ivrf, 1048576",
     "12: expected an address from 0 to 1048575, found '1048576'; " + DECIMAL),
    ("v_rd ivrf, 0x1", "12: expected an address from 0 to 1048575, found '0x1'; " + DECIMAL),
    ("v_rd ivrf, \u0663", "12: expected an address from 0 to 1048575, found '\\u0663'; "
     + DECIMAL),
    ("v_rd ivrf, " + "9" * 5000, "12: expected an address from 0 to 1048575, found '"
     + "9" * 37 + "...'; " + DECIMAL),
    ("v_rd netq, 0", "10: expected the end of v_rd, found ','; write one instruction a line; "
     "';' begins a comment"),
    ("end_chain loop 2", "11: expected the end of end_chain, found 'loop'; write one "
     "instruction a line; ';' begins a comment"),
    ("v_wr_inc ivrf, 0, 1", "20: expected a comma, found the end of the line; " + COMMAS),
    ("v_wr_inc ivrf, 0, 1, 40000",
     "22: expected a step DY from -32768 to 32767, found '40000'; " + DECIMAL),
    ("s_wr row, 1", "6: expected a register (rows, columns, iterations, iterations_x, window, "
     "window_run, window_pitch, requantize), found 'row'; correct the name"),
    ("s_wr rows, 0", "12: expected a value of rows from 1 to 4194303, found '0'; " + DECIMAL),
    ("s_wr requantize, 2",
     "18: expected a value of requantize from 0 to 1, found '2'; " + DECIMAL),
    ("loop 0", "6: expected a count from 1 to 4194303, found '0'; " + DECIMAL),
    ("v_relu 2", "8: expected a multifunction unit from 0 to 1, found '2'; "
     "write 0, 1 or nothing"),
    (".native 16", "1: expected no second .native, found '.native'; give each directive once"),
    (".width 16", "1: expected a directive (.native, .mantissa, .depth), found '.width'; "
     "correct the name"),
    (".mantissa 16", "11: expected mantissa bits from 2 to 15, found '16'; " + DECIMAL),
    (".depth netq 4", f"8: expected a memory ({ALL_STORED}), found 'netq'; "
     "name a memory that has a depth"),
    (".depth ivrf 1048577", "13: expected a depth from 1 to 1048576, found '1048577'; " + DECIMAL),
    (".depth ivrf, 4", "12: expected a depth from 1 to 1048576, found ','; " + DECIMAL),
    (".depth ivrf 4 5", "15: expected the end of the directive, found '5'; write one "
     "instruction a line; ';' begins a comment"),
    (";! weight w 3", "4: expected a hint (input, output, tensor), found 'weight'; "
     "or begin a comment with ';'"),
    (";!", "3: expected a hint (input, output, tensor), found the end of the line; "
     "or begin a comment with ';'"),
    (";! input 3x 3", "10: expected a tensor name, found '3x'; use letters, digits and '_', at "
     "most 64, no digit first"),
    (";! input " + "x" * 65 + " 3", "10: expected a tensor name, found '" + "x" * 37 + "...'; use "
     "letters, digits and '_', at most 64, no digit first"),
    (";! input x' 3", "10: expected a tensor name, found \"x'\"; use letters, digits and '_', "
     "at most 64, no digit first"),
    (";! input x 3x", "12: expected a shape C, TxC or CxHxW, found '3x'; "
     "write sizes from 1 to 1048576 with 'x' between them"),
    (";! input x 0", "12: expected a shape C, TxC or CxHxW, found '0'; "
     "write sizes from 1 to 1048576 with 'x' between them"),
    (";! input x 1x2x3x4", "12: expected a shape C, TxC or CxHxW, found '1x2x3x4'; "
     "write sizes from 1 to 1048576 with 'x' between them"),
    (";! tensor w netq 3", f"13: expected a memory ({ALL_STORED}), found 'netq'; "
     "name where the tensor lies"),
    (";! tensor w mrf 0 3x4x5", "19: expected a shape OxI or OxIxHxW, found '3x4x5'; "
     "write sizes from 1 to 1048576 with 'x' between them"),
    (";! output y 3 NCHW", "15: expected the end of the hint, found 'NCHW'; write one "
     "instruction a line; ';' begins a comment"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "wanted"), MESSAGES)
def test_messages(line, wanted):
    with pytest.raises(InputError) as caught:
        parse(f".native 8\n{line}\n", "net.nnp")
    assert str(caught.value) == f"net.nnp:2:{wanted}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "v_rd netq",
            "net.nnp:1: expected the directive .native, found none; begin the program with "
            "'.native N', the native dimension",
        ),
        (
            "end_chain\n.native 8",
            "net.nnp:2:1: expected an instruction, found '.native'; directives come before the "
            "first instruction",
        ),
        (
            ".native 8\n.mantissa 3\n.mantissa 3",
            "net.nnp:3:1: expected no second .mantissa, found '.mantissa'; give each directive "
            "once",
        ),
        (
            ".native 8\n.depth ivrf 3\n.depth ivrf 4",
            "net.nnp:3:8: expected a memory without a depth so far, found 'ivrf'; give each "
            "directive once",
        ),
        (
            ".native 7",
            "net.nnp:1:9: expected a native dimension from 8 to 512, found '7'; write a decimal "
            "integer",
        ),
    ],
)
def test_messages_of_whole_texts(text, wanted):
    with pytest.raises(InputError) as caught:
        parse(text, "net.nnp")
    assert str(caught.value) == wanted


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    """No other exception, and what is read can be written."""
    for given_text in (text, f".native 8\nv_rd {text}", f".native 8\n;! {text}"):
        try:
            program = parse(given_text)
        except InputError as error:
            assert str(error).startswith("program:")  # noqa: PT017
        else:
            assert unplaced(parse(to_text(program))) == unplaced(program)


# --- limits -----------------------------------------------------------------------------------


def test_at_most_so_many_instructions():
    text = ".native 8\n" + "v_relu\n" * INSTRUCTIONS_MAX
    program = parse(text)
    assert len(program.instructions) == INSTRUCTIONS_MAX
    with pytest.raises(InputError) as caught:
        parse(text + "v_relu\n")
    assert str(caught.value) == (
        "program:65538:1: expected at most 65536 instructions, found 'v_relu'; "
        "use loops or iterations"
    )
    words = [*to_words(program), 16 << 26]
    with pytest.raises(InputError) as caught:
        from_words(words, 8, 15, {})
    assert str(caught.value) == (
        "program: word 65536: expected at most 65536 instructions, found 0x40000000; "
        "assemble the program again"
    )


def test_at_most_so_much_text(monkeypatch):
    monkeypatch.setattr(assembly, "TEXT_MAX", 20)
    assert parse(".native 8           ").native == 8
    with pytest.raises(InputError) as caught:
        parse(".native 8            ")
    assert str(caught.value) == (
        "program: expected at most 20 characters, found 21; split the program"
    )


def test_at_most_so_many_hints(monkeypatch):
    monkeypatch.setattr(assembly, "HINTS_MAX", 1)
    with pytest.raises(InputError) as caught:
        parse(".native 8\n;! input x 1\n;! input y 1")
    assert str(caught.value) == (
        "program:3:4: expected at most 1 hints, found 'input'; hint fewer tensors"
    )


# --- messages of words ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([0], "word 0: expected the opcode of an instruction, found 0x00000000"),
        ([16 << 26, 63 << 26], "word 1: expected the opcode of an instruction, found 0xFC000000"),
        ([33 << 26], "word 0: expected the opcode of an instruction, found 0x84000000"),
        ([1 << 32], "word 0: expected 32 bits, found 4294967296"),
        ([-1], "word 0: expected 32 bits, found -1"),
        ([16 << 26 | 1], "word 0: expected operands of end_chain, found 0x40000001"),
        ([3 << 26 | 6 << 22], "word 0: expected operands of v_rd, found 0x0D800000"),
        ([3 << 26 | 15 << 22], "word 0: expected operands of v_rd, found 0x0FC00000"),
        ([3 << 26 | 8 << 22 | 1], "word 0: expected operands of v_rd, found 0x0E000001"),
        ([3 << 26 | 1 << 20], "word 0: expected operands of v_rd, found 0x0C100000"),
        ([1 << 26], "word 0: expected operands of s_wr, found 0x04000000"),
        ([1 << 26 | 8 << 22 | 1], "word 0: expected operands of s_wr, found 0x06000001"),
        ([2 << 26 | 1], "word 0: expected operands of s_rd, found 0x08000001"),
        ([13 << 26 | 2 << 22], "word 0: expected operands of v_relu, found 0x34800000"),
        ([17 << 26], "word 0: expected operands of loop, found 0x44000000"),
        ([35 << 26], "word 1: expected the steps of v_rd_inc, found the end"),
        ([35 << 26, -5], "word 1: expected the steps of v_rd_inc, found -5"),
        ([35 << 26 | 8 << 22, 0], "word 0: expected operands of v_rd_inc, found 0x8E000000"),
    ],
)
def test_messages_of_words(words, wanted):
    with pytest.raises(InputError) as caught:
        from_words(words, 8, 15, {}, "net")
    assert str(caught.value) == f"net: {wanted}; assemble the program again"


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            (7, 15, {}),
            "net: expected a native dimension from 8 to 512, found 7; give what the program was "
            "written for",
        ),
        (
            (8, 1, {}),
            "net: expected a number of mantissa bits from 2 to 15, found 1; give what the program "
            "was written for",
        ),
        (
            (8, 15, {"mrf": 0}),
            "net: expected a depth of mrf from 1 to 1048576, found 0; give what the program was "
            "written for",
        ),
        (
            (8, 15, {"netq": 1}),
            f"net: expected depths of {ALL_STORED}, found 'netq'; leave it out",
        ),
    ],
)
def test_messages_of_settings(settings, wanted):
    with pytest.raises(InputError) as caught:
        from_words([], *settings, "net")
    assert str(caught.value) == wanted


def test_a_byte_order_mark_is_skipped():
    text = ".native 8\nv_rd netq\nv_wr netq\nend_chain\n"
    assert parse("\ufeff" + text) == parse(text)
    with pytest.raises(InputError, match=r"^p:1:1: expected a directive .*, found '\.bad'"):
        parse("\ufeff.bad 8\n", "p")
    with pytest.raises(InputError, match=r"^p:2:1: expected an instruction"):
        parse(".native 8\n\ufeffv_rd netq\n", "p")
