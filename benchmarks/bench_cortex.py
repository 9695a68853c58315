"""Instructions of an inference on Cortex-M boards: generated C beside CMSIS-NN, layer for layer.

    python benchmarks/bench_cortex.py --cmsis-nn FOLDER [--nets resnet8 ...]
        [--boards cortex-m4 ...] [--out runs/cortex.json]

The networks are those of tests/edge_nets.py. FOLDER holds the sources of CMSIS-NN; its functions
are called with the same weights and shapes, and compiled with the same compiler and flags. It is
given no transposed or padded input: what our C needs for those is ours alone. Its fully connected
layers take one multiplier a tensor (arm_fully_connected_s8), which is less than the network says,
or with --per-channel what it says; the sums of weights that they want in RAM are left zero, as
counts do not depend on them. Counts are exact (samebits.codegen.run.execute); flash is the whole
program's, harness included.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from edge_nets import NETS, edge_net
from machine import write_record
from samebits.codegen.lowering.cpu import CPUS
from samebits.codegen.lowering.lower import lower_to_calls
from samebits.codegen.packaging.package import kernel_symbol, write_package
from samebits.codegen.run.execute import Executable, build, execute, instruction_count
from samebits.codegen.run.footprint import section_sizes
from samebits.codegen.run.targets import TARGETS, Target
from samebits.ir.graph import Graph, Node
from samebits.ir.interpreter import run

BOARDS = ("cortex-m3", "cortex-m4", "cortex-m55")
GROUPS = ("Convolution", "FullyConnected", "BasicMath", "Pooling", "Transpose", "NNSupport")
Array = np.ndarray[Any, Any]


def inputs_of(graph: Graph) -> list[Array]:
    """Codes over the whole type, the same in every run."""
    rng = np.random.default_rng(1)
    values = [graph.values[name] for name in graph.inputs]
    return [rng.integers(-128, 128, v.shape).astype(v.dtype) for v in values]


def ours(graph: Graph, board: str, work: Path) -> dict[str, Any]:
    """Counts and sizes of the package made for the board's processor; its codes are checked."""
    cpu = board if board in CPUS else "portable"
    report = write_package(graph, work / "ours", cpu=cpu)
    program = build(work / "ours", TARGETS[board], work / "ours-build")
    inputs = inputs_of(graph)
    (found,) = execute(program, inputs)
    if not np.array_equal(found.reshape(-1), run(graph, inputs)[0].reshape(-1)):
        raise SystemExit(f"{graph.name} on {board}: codes differ from the interpreter's")
    return {
        "instructions": instruction_count(program, inputs)[0],
        "flash": section_sizes(program).flash,
        "arena": report.arena,
    }


# --- CMSIS-NN -------------------------------------------------------------------------------------


@dataclass
class Text:
    """The C that calls CMSIS-NN: constant arrays, the buffers of values, and the calls."""

    graph: Graph
    per_channel: bool
    constants: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    buffers: dict[str, str] = field(default_factory=dict)

    def array(self, ctype: str, values: Any) -> str:
        """The name of a constant array."""
        name = f"t{len(self.constants)}"
        numbers = ", ".join(map(str, np.asarray(values).reshape(-1).tolist()))
        self.constants.append(f"static const {ctype} {name}[] = {{{numbers}}};")
        return name

    def buffer(self, name: str) -> str:
        """The name of a value's memory."""
        if name not in self.buffers:
            self.buffers[name] = f"b{len(self.buffers)}"
            size = self.graph.values[name].size
            self.constants.append(f"static int8_t {self.buffers[name]}[{size}];")
        return self.buffers[name]


def fixed(ratio: Fraction) -> tuple[int, int]:
    """(m, shift) with m / 2**31 * 2**shift the nearest to the ratio, as CMSIS-NN takes it."""
    shift = 0
    while ratio >= 1 << 0:
        ratio, shift = ratio / 2, shift + 1
    while ratio < Fraction(1, 2):
        ratio, shift = ratio * 2, shift - 1
    return min(round(ratio * (1 << 31)), (1 << 31) - 1), shift


def dims(n: int, h: int, w: int, c: int) -> str:
    """An argument that is a pointer to four numbers."""
    return f"&(const cmsis_nn_dims){{{n}, {h}, {w}, {c}}}"


def conv_text(text: Text, node: Node, last: Node, f: Any, x: str, out: str) -> None:
    """A convolution, depthwise or not, or a fully connected layer."""
    graph = text.graph
    w, b = (graph.constants[name].astype(np.int64) for name in node.inputs[1:])
    ratios = last.attributes["ratios"]
    zero, low, high = (last.attributes[key] for key in ("zero", "low", "high"))
    padded = f["pad_top"] or f["pad_left"]
    offset = -f["pad_code"] if padded else 128
    sums = w.reshape(len(w), -1).sum(1)
    bias = b - offset * sums
    act = f"{{{low}, {high}}}"
    o = len(w)
    pairs = [fixed(r) for r in (ratios if len(ratios) > 1 else [ratios[0]] * o)]
    if node.op == "linear":
        m, shift = map(str, fixed(max(ratios)))
        weights, biases = text.array("int8_t", w), text.array("int32_t", bias)
        kind, name = "tensor", "arm_fully_connected_s8"
        if text.per_channel:
            kind, name = "channel", "arm_fully_connected_per_channel_s8"
            m, shift = (
                f"(int32_t *){text.array('int32_t', [p[i] for p in pairs])}" for i in (0, 1)
            )
        text.calls.append(
            f"{name}(&(const cmsis_nn_context){{work, sizeof work}}, "
            f"&(const cmsis_nn_fc_params){{{offset}, 0, {zero}, {act}}}, "
            f"&(const cmsis_nn_per_{kind}_quant_params){{{m}, {shift}}}, "
            f"{dims(1, 1, 1, w.shape[1])}, {x}, {dims(w.shape[1], 1, 1, o)}, {weights}, "
            f"{dims(1, 1, 1, o)}, {biases}, "
            f"{dims(1, 1, 1, o)}, {out});"
        )
        return
    m, s = (text.array("int32_t", [p[i] for p in pairs]) for i in (0, 1))
    biases = text.array("int32_t", bias)
    depthwise = f["groups"] > 1
    weights = text.array("int8_t", w.transpose(3, 1, 2, 0) if depthwise else w)
    kind = "dw_conv" if depthwise else "conv"
    name = "depthwise_conv" if depthwise else "convolve"
    tiles = f"{{{f['stride_x']}, {f['stride_y']}}}, {{{f['pad_left']}, {f['pad_top']}}}, {{1, 1}}"
    first = f"{offset}, {zero}, " + ("1, " if depthwise else "")
    n, h, wd, c = graph.values[node.inputs[0]].shape
    shape = graph.values[node.output].shape
    filter_ = dims(1 if depthwise else o, w.shape[1], w.shape[2], o if depthwise else c)
    text.calls.append(
        f"arm_{name}_wrapper_s8(&(const cmsis_nn_context){{work, sizeof work}}, "
        f"&(const cmsis_nn_{kind}_params){{{first}{tiles}, {act}}}, "
        f"&(const cmsis_nn_per_channel_quant_params){{(int32_t *){m}, (int32_t *){s}}}, "
        f"{dims(n, h, wd, c)}, {x}, {filter_}, {weights}, {dims(1, 1, 1, o)}, {biases}, "
        f"{dims(*shape)}, {out});"
    )


def add_text(text: Text, node: Node, last: Node, sources: list[str], out: str) -> None:
    """An addition of two tensors, as TensorFlow Lite prepares it: inputs shifted left by 20."""
    a = last.attributes
    ratio = a["ratios"][0]
    factors = [ratio * factor for factor in node.attributes["factors"]]
    twice = 2 * max(factors)
    pairs = [fixed(factor / twice) for factor in factors]
    m, shift = fixed(twice / (1 << 20))
    terms = ", ".join(f"128, {p[0]}, {p[1]}" for p in pairs)
    text.calls.append(
        f"arm_elementwise_add_s8({sources[0]}, {sources[1]}, {terms}, 20, {out}, {a['zero']}, {m}, "
        f"{shift}, {a['low']}, {a['high']}, {text.graph.values[node.output].size});"
    )


def cmsis_text(graph: Graph, per_channel: bool) -> str:
    """model.c: the graph by calls of CMSIS-NN."""
    text, producers = Text(graph, per_channel), graph.producers()
    names = dict.fromkeys(graph.inputs, "input0")
    for entry in lower_to_calls(graph).entries:
        last = producers[entry.value]
        if entry.view_of:
            names[entry.value] = names[entry.view_of]
            continue
        node = producers[last.inputs[0]] if last.op == "requantize" else last
        if node.op in ("transpose", "pad"):
            names[entry.value] = names[node.inputs[0]]
            continue
        out = "output0" if entry.value in graph.outputs else text.buffer(entry.value)
        names[entry.value] = out
        f = entry.calls[0].parameters.fields
        if node.op in ("conv", "linear"):
            conv_text(text, node, last, f, names[node.inputs[0]], out)
        elif node.op == "add":
            add_text(text, node, last, [names[n] for n in node.inputs], out)
        elif node.op == "sum_pool":
            a = last.attributes
            n, h, w, c = graph.values[node.inputs[0]].shape
            kh, kw = node.attributes["kernel"]
            text.calls.append(
                "arm_avgpool_s8(&(const cmsis_nn_context){work, sizeof work}, "
                f"&(const cmsis_nn_pool_params){{{{{kw}, {kh}}}, {{0, 0}}, {{{a['low']}, "
                f"{a['high']}}}}}, {dims(n, h, w, c)}, {names[node.inputs[0]]}, "
                f"{dims(1, kh, kw, 1)}, {dims(*graph.values[node.output].shape)}, {out});"
            )
        else:
            raise SystemExit(f"{node.op}: no call of CMSIS-NN is known")
    calls = "\n    ".join(text.calls)
    return (
        '#include "model.h"\n#include "arm_nnfunctions.h"\n'
        "static int32_t work[16384];\n" + "\n".join(text.constants) + "\n"
        f"const uint32_t {kernel_symbol()} = 1;\n"  # that the header's instance names
        "void model_run(const model_t *net, const int8_t *input0, int8_t *output0) {\n"
        "    (void)net;\n    " + calls + "\n}\n"
    )


# Boards have no C library; what it declares of memory, boards/memory.c defines. The compiler may
# know these functions, as it does where there is a library: CMSIS-NN loads words by memcpy.
STRING = """#include <stddef.h>
void *memcpy(void *restrict to, const void *restrict from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int byte, size_t size);
#define memcpy(to, from, size) __builtin_memcpy(to, from, size)
#define memset(to, byte, size) __builtin_memset(to, byte, size)
"""


def theirs(
    graph: Graph, board: str, sources: Path, work: Path, per_channel: bool
) -> dict[str, Any]:
    """Counts and flash of the same layers in CMSIS-NN."""
    folder = work / "theirs"
    write_package(graph, folder)
    for name in ("model.c", "model_constants.c", "samebits/samebits_kernels.c"):
        (folder / name).unlink()
    (folder / "model.c").write_text(cmsis_text(graph, per_channel))
    (folder / "string.h").write_text(STRING)
    for group in GROUPS:
        for path in sorted((sources / "Source" / f"{group}Functions").glob("*.c")):
            if "_f16" not in path.name and "_f32" not in path.name:
                (folder / path.name).write_bytes(path.read_bytes())
    target: Target = TARGETS[board].with_flags(
        "-w", "-std=gnu99", "-I", str(sources / "Include"), "-I", str(sources / "Source")
    )
    program: Executable = build(folder, target, work / "theirs-build")
    return {
        "instructions": instruction_count(program, inputs_of(graph))[0],
        "flash": section_sizes(program).flash,
    }


def main() -> None:
    """Measure, print a table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cmsis-nn", type=Path, help="folder of the sources of CMSIS-NN")
    parser.add_argument(
        "--per-channel", action="store_true", help="fully connected layers by channel there too"
    )
    parser.add_argument("--nets", nargs="*", choices=list(NETS), default=list(NETS))
    parser.add_argument("--boards", nargs="*", default=list(BOARDS))
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    if a.cmsis_nn is None:
        print("without --cmsis-nn: our counts alone")
    rows = []
    print("board       network      instructions   CMSIS-NN  ratio     flash  ratio  arena")
    for board in a.boards:
        reason = TARGETS[board].unavailable()
        if reason:
            print(f"skipped: {reason}")
            continue
        for net in a.nets:
            graph = edge_net(net)[1].integer
            with tempfile.TemporaryDirectory() as work:
                row = {"board": board, "network": net, "ours": ours(graph, board, Path(work))}
                if a.cmsis_nn is not None:
                    row["cmsis-nn"] = theirs(graph, board, a.cmsis_nn, Path(work), a.per_channel)
            rows.append(row)
            print(line(row), flush=True)
    if a.out:
        write_record(a.out, rows=rows)


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    mine, other = row["ours"], row.get("cmsis-nn")
    memory = f"{mine['arena']:>7}"
    count, flash = mine["instructions"], mine["flash"]
    head = f"{row['board']:11} {row['network']:12} {count:>12,}"
    if other is None:
        return f"{head} {'':>17} {flash:>9,} {'':>6} {memory}"
    ratios = count / other["instructions"], flash / other["flash"]
    return (
        f"{head} {other['instructions']:>10,} {ratios[0]:>6.3f} {flash:>9,} {ratios[1]:>6.4f} "
        f"{memory}"
    )


if __name__ == "__main__":
    main()
