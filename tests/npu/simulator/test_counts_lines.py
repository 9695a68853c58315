"""Chains are told apart by their lines, and by their places where they have none."""

from dataclasses import replace

from samebits.npu.machine.assembly import parse
from samebits.npu.machine.chain import Chain
from samebits.npu.machine.check import check
from samebits.npu.machine.program import Image
from samebits.npu.simulator.counts import count

TEXT = """
.native 8
.mantissa 15
.depth ivrf 8
;! input x 8
;! output y 8
s_wr rows, 1
s_wr columns, 1
v_rd netq
v_relu
v_wr netq
end_chain
"""


def test_chains_without_lines_are_not_mistaken_for_others():
    program = parse(TEXT, "made.nnp")
    (chain,) = [s for s in check(program, Image({})) if isinstance(s, Chain)]
    lines = [0, 2, 0, 2, 1, 0]  # 0: made without text; their places are 0, 2 and 5
    found = count([replace(chain, line=line) for line in lines], 8)
    assert [(c.line, c.executions) for c in found.chains] == [
        *((0, 1), (2, 2), (0, 1), (1, 1), (0, 1))
    ]
