"""Which programs are legal, and what the chains of legal ones resolve to.

The rules are written over again here by enumeration: every iteration, every vector.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu.programs import random_case
from samebits.errors import InputError
from samebits.npu.machine import check as check_module
from samebits.npu.machine import cover
from samebits.npu.machine.assembly import parse
from samebits.npu.machine.chain import (
    Access,
    Chain,
    Loop,
    Operation,
    Send,
    base,
    bases,
    read_offsets,
)
from samebits.npu.machine.check import check
from samebits.npu.machine.isa import INSTRUCTIONS
from samebits.npu.machine.program import QUEUE, REGISTERS, Hint, Image, Instruction, Program

DEPTHS = {"ivrf": 32, "dram": 32, "mrf": 8, "mdram": 8}
DEPTHS |= {"asvrf0": 16, "asvrf1": 16, "mvrf0": 16, "mvrf1": 16}
HEAD = ".native 8\n" + "".join(f".depth {m} {d}\n" for m, d in DEPTHS.items())
LINES = HEAD.count("\n")


def full_image(program=None):
    depths = DEPTHS if program is None else program.depths
    vector, tile = np.ones(8, np.float16), np.ones((8, 8), np.float16)
    return Image(
        {m: dict.fromkeys(range(d), tile if m in ("mrf", "mdram") else vector)
         for m, d in depths.items()}
    )  # fmt: skip


def steps(body, image=None):
    program = parse(HEAD + body, "net.nnp")
    return check(program, full_image() if image is None else image)


def message(body, image=None):
    """The message, with lines counted from the first line of the body."""
    with pytest.raises(InputError) as caught:
        steps(body, image)
    found = str(caught.value)
    return re.sub(r"(?<=net\.nnp:)\d+|(?<=line )\d+", lambda m: str(int(m[0]) - LINES), found)


# --- resolved chains --------------------------------------------------------------------------


def test_a_chain_resolved():
    (found,) = steps(
        "s_wr rows, 1\ns_wr columns, 6\ns_wr iterations, 4\ns_wr iterations_x, 2\ns_wr window, 3\n"
        "s_wr window_run, 2\ns_wr window_pitch, 5\ns_wr requantize, 1\n"
        "v_rd_inc dram, 3, 2, 4\nmv_mul 1\nvv_max asvrf1, 2\nvv_mul_inc mvrf1, 3, 0, 1\nv_relu\n"
        "v_wr_inc ivrf, 1, 1, 2\nv_wr_inc mvrf0, 9, -1, -2\nend_chain\n"
    )
    at = LINES
    assert found == Chain(
        kind="vector",
        rows=1,
        columns=6,
        iterations=4,
        iterations_x=2,
        window=3,
        window_run=2,
        window_pitch=5,
        requantize=True,
        read=Access("dram", 3, 2, 4, at + 9),
        mvm_address=1,
        operations=(
            Operation("vv_max", 1, Access("asvrf1", 2, 0, 0, at + 11), at + 11),
            Operation("vv_mul", 1, Access("mvrf1", 3, 0, 1, at + 12), at + 12),
            Operation("v_relu", 1, None, at + 13),
        ),
        writes=(
            Access("ivrf", 1, 1, 2, at + 14),
            Access("mvrf0", 9, -1, -2, at + 15),
        ),
        line=at + 9,
    )
    assert (found.read_count, found.write_count, found.windowed) == (6, 1, True)
    assert read_offsets(found).tolist() == [0, 1, 5, 6, 10, 11]
    assert bases(found.read, found).tolist() == [3, 5, 7, 9]
    assert [base(found.writes[1], t, 2) for t in range(4)] == [9, 8, 7, 6]


def test_a_matrix_chain():
    (found,) = steps(
        "s_wr rows, 2\ns_wr columns, 3\ns_wr window, 7\nm_rd mdram, 1\nm_wr mrf, 2\nend_chain\n"
    )
    assert (found.kind, found.read_count, found.write_count) == ("matrix", 6, 6)
    assert not found.windowed
    assert read_offsets(found).tolist() == list(range(6))


def test_units_of_activations():
    (found,) = steps("v_rd ivrf, 0\nv_tanh\nv_relu 1\nv_wr dram, 0\nend_chain\n")
    assert [(o.op, o.unit) for o in found.operations] == [("v_tanh", 0), ("v_relu", 1)]
    (found,) = steps("v_rd ivrf, 0\nvv_mul mvrf1, 0\nv_tanh\nv_wr dram, 0\nend_chain\n")
    assert [(o.op, o.unit) for o in found.operations] == [("vv_mul", 1), ("v_tanh", 1)]


def test_scalars_are_sent():
    assert steps("s_rd rows\ns_wr rows, 5\ns_rd rows\n") == (
        Send("rows", 1, LINES + 1),
        Send("rows", 5, LINES + 3),
    )


COPY = "v_rd ivrf, 0\nv_wr dram, 0\nend_chain\n"


def test_a_loop_stays_one():
    (loop,) = steps("loop 5\ns_wr rows, 2\n" + COPY + "end_loop\n")
    assert (loop.count, len(loop.body), loop.line) == (5, 1, LINES + 1)


def test_a_loop_whose_first_turn_differs():
    first, rest, after = steps("loop 5\n" + COPY + "s_wr rows, 2\nend_loop\n" + COPY)
    assert (first.count, first.body[0].rows) == (1, 1)
    assert (rest.count, rest.body[0].rows) == (4, 2)
    assert after.rows == 2


def test_a_loop_of_one_turn_is_checked_once():
    """The second turn would leave the memory."""
    body = "loop 1\n" + COPY + "s_wr rows, 33\nend_loop\n"
    assert len(steps(body)) == 1
    assert "found 0 to 32" in message(body.replace("loop 1", "loop 2"))


def test_loops_without_chains_vanish():
    assert steps("loop 4000000\nloop 4000000\ns_wr rows, 2\nend_loop\nend_loop\n") == ()


def effective(registers, chain):
    """The registers that a chain of these instructions depends on; the others as after reset."""
    matrix, product = chain[0].op.startswith("m_rd"), any(i.op == "mv_mul" for i in chain)
    used = {"rows", "iterations"}
    used |= {"columns"} if matrix or product else set()
    used |= {"requantize"} if product else set()
    if registers["window"] * registers["window_run"] != 1 and not matrix:
        used |= {"window", "window_run", "window_pitch"}
    values = {name: registers[name] if name in used else REGISTERS[name] for name in registers}
    values["iterations_x"] = min(registers["iterations_x"], registers["iterations"])
    return tuple(values.values())


def executed(program):
    """The registers every chain and s_rd runs under, by running the program line by line."""
    registers, out, stack, at = dict(REGISTERS), [], [], 0
    code = program.instructions
    while at < len(code):
        one = code[at]
        if one.op == "s_wr":
            registers[one.register] = one.value
        elif one.op == "s_rd":
            out.append((one.line, registers[one.register]))
        elif one.op == "loop":
            stack.append([at, one.value])
        elif one.op == "end_loop":
            stack[-1][1] -= 1
            if stack[-1][1]:
                at = stack[-1][0]
            else:
                stack.pop()
        elif INSTRUCTIONS[one.op].base in ("v_rd", "m_rd", "m_rd_t"):
            end = next(i for i in range(at, len(code)) if code[i].op == "end_chain")
            out.append((one.line, effective(registers, code[at:end])))
        at += 1
    return out


def flat(steps):
    for step in steps:
        if isinstance(step, Loop):
            for _ in range(step.count):
                yield from flat(step.body)
        elif isinstance(step, Send):
            yield step.line, step.value
        else:
            yield step.line, tuple(int(getattr(step, name)) for name in REGISTERS)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_run_under_these_registers(seed):
    case = random_case(seed)
    assert list(flat(check(case.program, case.image))) == executed(case.program)


@given(st.integers(0, 10**9))
def test_random_nested_loops_run_under_these_registers(seed):
    """Settings anywhere in loops four deep."""
    rng = random.Random(seed)
    code: list[Instruction] = []

    def body(depth):
        for _ in range(rng.randint(1, 4)):
            choice = rng.random()
            if choice < 0.4:
                register = rng.choice(["rows", "requantize", "columns"])
                code.append(Instruction("s_wr", register=register, value=1 + rng.randint(0, 1)))
                if register == "requantize":
                    code[-1] = replace(code[-1], value=rng.randint(0, 1))
            elif choice < 0.5:
                code.append(Instruction("s_rd", register="rows"))
            elif choice < 0.75 or depth == 4:
                code.append(Instruction("v_rd", "ivrf", 0))
                if rng.random() < 0.7:
                    code.append(Instruction("mv_mul", address=0))
                code.append(Instruction("v_wr", "dram", 0))
                code.append(Instruction("end_chain"))
            else:
                code.append(Instruction("loop", value=rng.randint(1, 3)))
                body(depth + 1)
                code.append(Instruction("end_loop"))

    body(0)
    numbered = tuple(replace(one, line=n) for n, one in enumerate(code, start=1))
    program = Program(8, 15, DEPTHS, numbered)
    assert list(flat(check(program, full_image()))) == executed(program)


# --- addresses --------------------------------------------------------------------------------


def addresses(chain, access):
    """All of an access, one by one."""
    out = []
    for t in range(chain.iterations):
        ty, tx = divmod(t, chain.iterations_x)
        first = access.address + tx * access.dx + ty * access.dy
        if access is chain.read and chain.window * chain.window_run != 1:
            out += [
                first + w * chain.window_pitch + r
                for w in range(chain.window)
                for r in range(chain.window_run)
            ]
        else:
            count = chain.read_count if access is chain.read else chain.write_count
            out += [first + k for k in range(count)]
    return out


STEPS = st.integers(-4, 6)


@st.composite
def chains(draw):
    small = st.integers(1, 4)
    window, run = draw(small), draw(small)
    access = Access("ivrf", draw(st.integers(-5, 30)), draw(STEPS), draw(STEPS))
    other = Access("ivrf", draw(st.integers(-5, 30)), draw(STEPS), draw(STEPS))
    windowed = draw(st.booleans())
    rows = window * run if windowed else draw(small)
    return Chain(
        *("vector", rows, 1, draw(st.integers(1, 20)), draw(st.integers(1, 7))),
        *((window, run) if windowed else (1, 1)),
        *(draw(st.integers(0, 5)), False, access, None, (), (other,)),
    )


@given(chains())
def test_covers_by_enumeration(chain):
    found = []
    for access in (chain.read, chain.writes[0]):
        every = addresses(chain, access)
        assert cover.ends(chain, access) == (min(every), max(every))
        covered = cover.cover(chain, access)
        assert (np.flatnonzero(covered.mask) + covered.low).tolist() == sorted(set(every))
        found.append((set(every), covered))
    (a, first), (b, second) = found
    assert cover.common(first, second) == min(a & b, default=None)
    turns = [divmod(t, chain.iterations_x) for t in range(chain.iterations)]
    bases_of_read = [
        chain.read.address + tx * chain.read.dx + ty * chain.read.dy for ty, tx in turns
    ]
    assert bases(chain.read, chain).tolist() == bases_of_read
    assert [base(chain.read, t, chain.iterations_x) for t in range(chain.iterations)] == (
        bases_of_read
    )
    one = [first + int(k) for first in bases_of_read for k in read_offsets(chain)]
    assert one == addresses(chain, chain.read)


def legal(chain, written):
    """The address rules of one chain by enumeration; `written` grows by what it writes."""
    accesses = [chain.read, *(o.operand for o in chain.operations if o.operand), *chain.writes]
    touched = {id(a): addresses(chain, a) for a in accesses if a.memory != QUEUE}
    if chain.mvm_address is not None:
        tiles = range(chain.mvm_address, chain.mvm_address + chain.rows * chain.columns)
        if not set(tiles) <= written["mrf"]:
            return False
    reads, writes = set(), []
    for access in accesses:
        places = touched.get(id(access), [])
        if any(not 0 <= p < DEPTHS[access.memory] for p in places):
            return False
        keyed = [(access.memory, p) for p in places]
        if any(access is w for w in chain.writes):
            writes += keyed
        else:
            reads |= set(keyed)
    if not all(p in written[memory] for memory, p in reads):
        return False
    if len(set(writes)) < len(writes) or reads & set(writes):
        return False
    for memory, p in writes:
        written[memory].add(p)
    return True


@st.composite
def bodies(draw):
    """A few chains, any of which may break the rules of addresses."""
    out, small = [], st.integers(1, 3)
    pick = st.sampled_from

    def place(memory):
        top = DEPTHS[memory] // 2
        return f"{memory}, {draw(st.integers(0, top))}, {draw(STEPS)}, {draw(STEPS)}"

    for _ in range(draw(small)):
        rows, window = draw(small), draw(small)
        settings = {"rows": rows, "columns": draw(small), "iterations": draw(pick([1, 1, 2, 5]))}
        settings |= {"iterations_x": draw(small), "window_pitch": draw(st.integers(0, 4))}
        product = draw(st.booleans())
        taken = settings["columns"] if product else rows
        windowed = taken % window == 0
        settings |= {"window": window if windowed else 1}
        settings |= {"window_run": taken // window if windowed else 1}
        out += [f"s_wr {name}, {value}" for name, value in settings.items()]
        out.append(f"v_rd_inc {place(draw(pick(['ivrf', 'dram'])))}")
        if product:
            out.append(f"mv_mul {draw(st.integers(0, 4))}")
        if draw(st.booleans()):
            out.append(f"vv_add_inc {place('asvrf1')}")
        for _ in range(draw(small)):
            out.append(f"v_wr_inc {place(draw(pick(['ivrf', 'dram', 'asvrf1', 'mvrf0'])))}")
        out.append("end_chain")
    return "\n".join(out)


@given(bodies(), st.integers(0, 3))
def test_legal_is_what_enumeration_says(body, gaps):
    image = full_image()
    rng = random.Random(gaps)
    held = {
        m: {a: e for a, e in entries.items() if gaps == 0 or rng.random() < 0.97}
        for m, entries in image.entries.items()
    }
    program = parse(HEAD + body, "net.nnp")
    written = {m: set(entries) for m, entries in held.items()}
    block = check_module.structure(program)
    registers, verdicts = dict(REGISTERS), []
    for item in block.items:
        if isinstance(item, list):
            chain = check_module.build(program, item, tuple(registers.values()))
            verdicts.append(legal(chain, written))
            if not verdicts[-1]:
                break
        else:
            registers[item.register] = item.value
    try:
        check(program, Image(held))
    except InputError as error:
        assert not all(verdicts), str(error)  # noqa: PT017
    else:
        assert all(verdicts)


# --- messages ---------------------------------------------------------------------------------

READ = "v_rd ivrf, 0\n"
WRITE = "v_wr dram, 0\n"
END = "end_chain\n"
MESSAGES = [
    ("end_loop", "1: expected a loop before it, found end_loop outside; delete it"),
    ("loop 2\n" * 5, "5: expected loops at most 4 deep, found one more; write it out"),
    ("loop 2\n" + COPY, "4: expected end_loop of the loop of line 1, found the end of the "
     "program; write end_loop"),
    (READ, "1: expected the rest of the chain of line 1, found the end of the program; "
     "write end_chain"),
    (READ + "s_wr rows, 2\n", "2: expected the rest of the chain of line 1, found "
     "'s_wr rows, 2'; write end_chain first"),
    (READ + "loop 2\n", "2: expected the rest of the chain of line 1, found 'loop 2'; "
     "write end_chain first"),
    (END, "1: expected a chain to begin with v_rd or m_rd, found 'end_chain'; read first"),
    (WRITE + END, "1: expected a chain to begin with v_rd or m_rd, found 'v_wr dram, 0'; "
     "read first"),
    (READ + END, "2: expected one or more v_wr in the chain of line 1, found 0; "
     "write what the chain carries"),
    (READ + READ + WRITE + END, "2: expected one read in a chain, found 'v_rd ivrf, 0'; "
     "use another chain"),
    (READ + "m_wr mdram, 0\n" + END, "2: expected v_wr in a chain that begins with v_rd, found "
     "'m_wr mdram, 0'; use another chain"),
    ("m_rd mdram, 0\nv_relu\n", "2: expected the rest of the chain of line 1, found the end of "
     "the program; write end_chain"),
    ("m_rd mdram, 0\nv_relu\n" + END, "2: expected m_wr in a chain that begins with m_rd, found "
     "'v_relu'; use another chain"),
    ("m_rd mdram, 0\nmv_mul 0\n" + END, "2: expected m_wr in a chain that begins with m_rd, "
     "found 'mv_mul 0'; use another chain"),
    ("m_rd mdram, 0\nm_wr mrf, 0\nm_wr mrf, 1\n" + END, "4: expected one m_wr in the chain of "
     "line 1, found 2; write what the chain carries"),
    (READ + WRITE + "v_relu\n" + END, "3: expected v_wr or end_chain after v_wr, found 'v_relu'; "
     "use another chain"),
    (READ + WRITE + "mv_mul 0\n" + END, "3: expected v_wr or end_chain after v_wr, found "
     "'mv_mul 0'; use another chain"),
    (READ + "mv_mul 0\nmv_mul 1\n" + END, "3: expected at most one mv_mul in a chain, found "
     "'mv_mul 1'; use another chain"),
    (READ + "v_relu\nmv_mul 1\n" + END, "3: expected mv_mul directly after v_rd, found "
     "'mv_mul 1'; use another chain"),
    (READ + "v_wr netq\nv_wr netq\n" + END, "3: expected one v_wr netq in a chain, found "
     "another; use another chain"),
    (READ + "v_relu\nv_tanh\n" + WRITE + END, "3: expected add-subtract, multiply, activation at "
     "most once each in unit 0, then in unit 1, found 'v_tanh' (unit 0) after activation of unit "
     "0; use the other unit or another chain"),
    (READ + "vv_mul mvrf0, 0\nvv_add asvrf0, 0\n" + WRITE + END, "3: expected add-subtract, "
     "multiply, activation at most once each in unit 0, then in unit 1, found 'vv_add asvrf0, 0' "
     "(unit 0) after multiply of unit 0; use the other unit or another chain"),
    (READ + "vv_add asvrf1, 0\nv_relu 0\n" + WRITE + END, "3: expected add-subtract, multiply, "
     "activation at most once each in unit 0, then in unit 1, found 'v_relu 0' (unit 0) after "
     "add-subtract of unit 1; use the other unit or another chain"),
    ("s_wr window, 2\ns_wr window_run, 2\ns_wr rows, 3\n" + COPY, "4: expected window * "
     "window_run = 1 or rows (3), found 2 * 2; set window, window_run or rows"),
    ("s_wr window, 2\n" + READ + "mv_mul 0\n" + WRITE + END, "2: expected window * window_run = 1 "
     "or columns (1), found 2 * 1; set window, window_run or columns"),
    ("s_wr window, 2\ns_wr rows, 2\nv_rd netq\n" + WRITE + END, "3: expected window * window_run "
     "= 1 to read netq, found 2 * 1; windows apply to memories: set both to 1"),
    ("s_wr rows, 33\n" + COPY, "2: expected addresses of ivrf from 0 to 31, found 0 to 32 over "
     "all vectors and iterations; raise its .depth or lower the address, the steps or the "
     "registers"),
    ("s_wr iterations, 9\nv_rd ivrf, 0\nv_wr_inc dram, 3, 0, -1\n" + END, "3: expected addresses "
     "of dram from 0 to 31, found -5 to 3 over all vectors and iterations; raise its .depth or "
     "lower the address, the steps or the registers"),
    ("s_wr rows, 3\ns_wr columns, 3\ns_wr window_run, 3\n" + READ + "mv_mul 0\n" + WRITE + END,
     "4: expected addresses of mrf from 0 to 7, found 0 to 8 over all vectors and iterations; "
     "raise its .depth or lower the address, the steps or the registers"),
    ("s_wr iterations, 4\n" + COPY, "3: expected a chain to write every address once, found 4 "
     "writes to 1 addresses of dram; use the _inc form with steps that lead apart"),
    ("s_wr iterations, 4194303\ns_wr iterations_x, 4194303\n" + COPY, "4: expected a chain to "
     "write every address once, found 4194303 writes to 1 addresses of dram; use the _inc form "
     "with steps that lead apart"),
    ("v_rd dram, 5\nv_wr dram, 5\n" + END, "2: expected no address both read and written in one "
     "chain, found dram 5 (see line 1); write it elsewhere or in another chain"),
    ("s_wr rows, 2\nv_rd dram, 5\nvv_add asvrf0, 7\nv_wr asvrf0, 6\n" + END, "4: expected no "
     "address both read and written in one chain, found asvrf0 7 (see line 3); write it "
     "elsewhere or in another chain"),
    ("s_wr rows, 2\nv_rd ivrf, 5\nv_wr dram, 0\nv_wr dram, 1\n" + END, "4: expected no address "
     "written twice in one chain, found dram 1 (see line 3); write it elsewhere or in another "
     "chain"),
    ("m_rd mdram, 1\nm_wr mdram, 1\n" + END, "2: expected no address both read and written in "
     "one chain, found mdram 1 (see line 1); write it elsewhere or in another chain"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "wanted"), MESSAGES)
def test_messages(body, wanted):
    assert message(body) == f"net.nnp:{wanted}"


def without(**gaps):
    image = full_image()
    return Image(
        {m: {a: e for a, e in held.items() if a not in gaps.get(m, ())}
         for m, held in image.entries.items()}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "gaps", "wanted"),
    [
        (COPY, {"ivrf": [0]}, "1: expected ivrf 0 to be written before it is read, found nothing "
         "there (1 entries in all); write it first or give it in the memory image"),
        ("s_wr rows, 4\nv_rd ivrf, 0\nvv_add asvrf0, 2\n" + WRITE + END, {"asvrf0": [3, 5, 6]},
         "3: expected asvrf0 3 to be written before it is read, found nothing there (2 entries in "
         "all); write it first or give it in the memory image"),
        ("s_wr rows, 2\n" + READ + "mv_mul 2\n" + WRITE + END, {"mrf": [3]},
         "2: expected mrf 3 to be written before it is read, found nothing there (1 entries in "
         "all); write it first or give it in the memory image"),
        ("m_rd mdram, 2\nm_wr mrf, 0\n" + END, {"mdram": [2]},
         "1: expected mdram 2 to be written before it is read, found nothing there (1 entries in "
         "all); write it first or give it in the memory image"),
        # the first turn of a loop reads what only its end writes
        ("loop 3\nv_rd ivrf, 0\nv_wr dram, 0\nend_chain\nv_rd dram, 0\nv_wr ivrf, 0\nend_chain\n"
         "end_loop\n", {"ivrf": [0]}, "2: expected ivrf 0 to be written before it is read, found "
         "nothing there (1 entries in all); write it first or give it in the memory image"),
    ],
)  # fmt: skip
def test_reading_what_nobody_wrote(body, gaps, wanted):
    assert message(body, without(**gaps)) == f"net.nnp:{wanted}"


def test_written_before_it_is_read():
    body = "v_rd ivrf, 0\nv_wr dram, 3\nend_chain\nv_rd dram, 3\nv_wr ivrf, 5\nend_chain\n"
    assert len(steps(body, without(dram=[3]))) == 2


def test_windows_may_leave_gaps_that_nobody_wrote():
    body = "s_wr rows, 4\ns_wr window, 2\ns_wr window_run, 2\ns_wr window_pitch, 3\n" + COPY
    assert steps(body, without(ivrf=[2]))
    assert "expected ivrf 3 to be" in message(body, without(ivrf=[3]))


def test_a_memory_without_a_depth():
    program = parse(".native 8\n.depth ivrf 4\nv_rd ivrf, 0\nmv_mul 0\nv_wr ivrf, 1\nend_chain")
    with pytest.raises(InputError) as caught:
        check(program, full_image(program))
    assert str(caught.value) == (
        "program:3: expected the depth of mrf, found none; write .depth mrf and the depth at the "
        "beginning"
    )


# --- counts and hints -------------------------------------------------------------------------

SEND = "v_rd ivrf, 0\nv_wr netq\nend_chain\n"
HINTED = [
    (SEND, "2: expected 0 vectors of netq to be written, as the output hints say (there are "
     "none), found 1; correct the hints or the chains"),
    (";! output y 9\n" + SEND, "1: expected 2 vectors of netq to be written, as the output hints "
     "say (2 of y), found 1; correct the hints or the chains"),
    (";! input x 3x2x2\n;! input z 2x9\nv_rd netq\nv_wr dram, 0\nend_chain\n", "1: expected 8 "
     "vectors of netq to be read, as the input hints say (4 of x, 4 of z), found 1; correct the "
     "hints or the chains"),
    (";! input x 3x2x2\n;! input z 2x9\nloop 5\nv_rd netq\nv_wr dram, 0\nend_chain\nend_loop\n",
     "2: expected 8 vectors of netq to be read, as the input hints say (4 of x, 4 of z), found 5; "
     "correct the hints or the chains"),
    (";! input x 3x2x2\nloop 5\n" + COPY + "v_rd netq\nv_wr dram, 0\nend_chain\nend_loop\n",
     "6: expected 4 vectors of netq to be read, as the input hints say (4 of x), found 5; "
     "correct the hints or the chains"),
    ("".join(f";! input x{i} 1\n" for i in range(10)), "1: expected 10 vectors of netq to be read, "
     "as the input hints say (1 of x0, 1 of x1, 1 of x2, 1 of x3, 1 of x4, 1 of x5, 1 of x6, 1 of "
     "x7, ...), found 0; correct the hints or the chains"),
    ("loop 10001\nloop 10000\n" + COPY + "end_loop\nend_loop\n", "1: expected at most 100000000 "
     "executed iterations, found 100010000, most of them here; lower the counts of loops or "
     "iterations"),
    (COPY + "s_wr iterations, 100001\nloop 1000\nv_rd ivrf, 0\nv_wr netq\nend_chain\nend_loop\n",
     "5: expected at most 100000000 executed iterations, found 100001001, most of them here; "
     "lower the counts of loops or iterations"),
    ("loop 10001\nloop 10000\ns_rd rows\nend_loop\nend_loop\n", "1: expected at most 100000000 "
     "executed iterations, found 100010000, most of them here; lower the counts of loops or "
     "iterations"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "wanted"), HINTED)
def test_messages_of_counts(body, wanted):
    assert message(body) == f"net.nnp:{wanted}"


def test_queue_counts_through_loops_and_tiles():
    body = (
        ";! input x 48x8\n;! input z 3\n;! output y 12x3\n"
        "loop 3\nloop 2\nm_rd netq\nm_wr mrf, 0\nend_chain\n"
        "s_wr rows, 2\nv_rd ivrf, 0\nv_wr dram, 0\nv_wr netq\nend_chain\ns_wr rows, 1\nend_loop\n"
        "end_loop\nv_rd netq\nv_wr dram, 0\nend_chain\n"
    )
    assert len(steps(body)) == 2


TENSORS = [
    (";! tensor w dram 0 9\n;! input w 3\n", "2: expected names of tensors to be used once, found "
     "w of line 1 again; rename it"),
    (";! tensor w dram 31 9\n", "1: expected addresses of dram from 0 to 31, found 31 to 32 over "
     "all vectors and iterations; raise its .depth or lower the address, the steps or the "
     "registers"),
    (";! tensor w dram 4 9\n;! tensor v dram 3 2x3\n", "1: expected tensors apart, found w at "
     "dram 4 inside v (line 2), which ends at 4; move it"),
    (";! tensor w mrf 0 8x16\n;! tensor v mrf 1 1x1x3x1\n", "2: expected tensors apart, found v "
     "at mrf 1 inside w (line 1), which ends at 1; move it"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "wanted"), TENSORS)
def test_messages_of_tensors(body, wanted):
    assert message(body) == f"net.nnp:{wanted}"


def test_a_tensor_that_the_image_lacks():
    assert message(";! tensor w dram 3 9\n", without(dram=[4])) == (
        "net.nnp:1: expected tensor w in the memory image, found no dram 4 there; add it to the "
        "image or delete the hint"
    )


def test_tensors_side_by_side():
    assert steps(";! tensor w dram 0 9\n;! tensor v dram 2 2x3\n;! tensor u mrf 2 3x3\n") == ()


# --- images and programs made without the assembler -------------------------------------------


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        (
            {"netq": {0: np.ones(8, np.float16)}},
            "expected an image of ivrf, asvrf0, asvrf1, mvrf0, mvrf1, dram, mrf, mdram, found "
            "'netq'; leave it out",
        ),
        (
            {"dram": {32: np.ones(8, np.float16)}},
            "memory image: expected addresses of dram below its depth 32, found 32; raise .depth "
            "dram",
        ),
        (
            {"dram": {-1: np.ones(8, np.float16)}},
            "memory image: expected addresses of dram below its depth 32, found -1; raise .depth "
            "dram",
        ),
        (
            {"mrf": {0: np.ones(8, np.float16)}},
            "memory image: mrf 0: expected float16 [8, 8], found float16 [8]; pad and convert",
        ),
        (
            {"ivrf": {0: np.ones(8)}},
            "memory image: ivrf 0: expected float16 [8], found float64 [8]; pad and convert",
        ),
    ],
)
def test_messages_of_images(entries, wanted):
    assert message("", Image(entries)) == f"net.nnp: {wanted}"


LEGAL = Program(8, 15, DEPTHS, (), (), "made")


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        (
            replace(LEGAL, native=7),
            "made: expected a native dimension from 8 to 512, found 7; correct the program",
        ),
        (
            replace(LEGAL, mantissa=16),
            "made: expected a mantissa from 2 to 15, found 16; correct the program",
        ),
        (
            replace(LEGAL, depths={"ivrf": 0}),
            "made: expected a depth of ivrf from 1 to 1048576, found 0; correct the program",
        ),
        (
            replace(LEGAL, depths={"cache": 4}),
            "made: expected depths of ivrf, asvrf0, asvrf1, mvrf0, mvrf1, dram, mrf, mdram, found "
            "'cache'; leave it out",
        ),
        (
            replace(LEGAL, instructions=(Instruction("v_rd", "mrf", line=3),)),
            "made:3: expected memory ivrf or dram or netq of v_rd, found 'mrf'; "
            "docs/spec/isa.md lists the instructions",
        ),
        (
            replace(LEGAL, instructions=(Instruction("end_chain"),) * 65537),
            "made: expected a number of instructions from 0 to 65536, found 65537; correct the "
            "program",
        ),
        (
            replace(LEGAL, hints=(Hint("input", "a b", (3,), line=2),)),
            "made:2: expected a hint as in docs/spec/npu.md 4, found Hint(kind='input', "
            "name='a b', shape=(3,), memory='netq', address=0, line=2)",
        ),
        (
            replace(LEGAL, hints=(Hint("tensor", "a", (3,), "mrf", line=2),)),
            "made:2: expected a hint as in docs/spec/npu.md 4, found Hint(kind='tensor', "
            "name='a', shape=(3,), memory='mrf', address=0, line=2)",
        ),
    ],
)
def test_messages_of_programs_that_no_text_gives(program, wanted):
    with pytest.raises(InputError) as caught:
        check(program, Image())
    assert str(caught.value) == wanted


# --- time and memory --------------------------------------------------------------------------


def test_many_iterations_cost_no_more_than_their_addresses():
    """4 million iterations over 2**20 addresses; 2**22 iterations that all read one vector."""
    body = (
        ".native 8\n.depth ivrf 1048576\n.depth dram 1048576\n;! output y 8388606x8\n"
        "s_wr iterations, 4194303\ns_wr iterations_x, 2048\n"
        "v_rd_inc ivrf, 0, 1, 511\nv_wr netq\nend_chain\n"
        "v_rd ivrf, 5\nv_wr netq\nend_chain\n"
    )
    program = parse(body.replace("8388606x8", "1047552x8"))
    image = Image({"ivrf": dict.fromkeys(range(1 << 20), np.ones(8, np.float16))})
    with pytest.raises(InputError) as caught:
        check(program, image)
    assert "found 8388606; correct the hints" in str(caught.value)


def test_chains_span_so_many_addresses(monkeypatch):
    body = "s_wr rows, 20\n" + COPY * 2 + "loop 9\n" + COPY + "end_loop\n"
    monkeypatch.setattr(check_module, "TOUCHED_MAX", 120)
    assert len(steps(body)) == 3
    monkeypatch.setattr(check_module, "TOUCHED_MAX", 119)
    assert message(body) == (
        "net.nnp:10: expected chains that span at most 119 addresses in all, found more; use "
        "loops, iterations or fewer chains"
    )


def test_loops_that_enter_with_other_settings_each_time():
    """Four deep, each body entered with two settings: chains are resolved once a setting."""
    body = "loop 2\n" * 4 + COPY * 2000 + "s_wr rows, 2\n" + "end_loop\n" * 4
    found = steps(body)
    assert sum(1 for _ in flat(found)) == 16 * 2000
