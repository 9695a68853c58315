"""Quantization after training: constants and scales, and what the integer graphs compute.

Weights and samples have so few bits that the sums of the convolutions are exact in binary64, so
calibration sees the same values in whatever order a machine adds. Sigmoid and tanh go through its
libm, whose last bit matters to no scale but in the rarest case: ranges are kept as binary32, scales
in 24 bits, those of an LSTM in 8.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pins.registry import Array, Pins, UnavailableError, digest, digest_of_set, route
from pins.samples import fractions, integers
from samebits.codegen.run.targets import TARGETS
from samebits.ir import Graph, GraphBuilder
from samebits.ir.integer.define import limits
from samebits.ir.interpreter import run_steps
from samebits.ir.rewrite import simplify
from samebits.model import Model
from samebits.quantization import RecurrentSettings, Settings, quantize_graph, quantize_recurrent
from samebits.verification.backends.generated_c import GeneratedC
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.backends.reference import Reference
from samebits.verification.inputs import random_codes
from stream_program import Run, stream

CONV = {"strides": (1, 1), "dilations": (1, 1), "group": 1}
POOL = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
SAMPLES = 8
STEPS = 20
QUICK_CNNS = ("asymmetric-s8", "power-of-two-s8")
QUICK_LSTMS = ("8 bits", "16 bits")
SETTINGS = {
    "asymmetric-s8": Settings(),
    "asymmetric-u8, mse, per tensor": Settings(
        "asymmetric-u8", calibration="mse", per_channel=False
    ),
    "power-of-two-s8": Settings("power-of-two-s8", "power-of-two-s8"),
    "4 bits, equalized, refined, mixed": Settings(
        weights="symmetric-s4",
        equalize="weights",
        rounding="least-error",
        bias_correction=True,
        mixed=2,
    ),
    "symmetric-s16, percentile": Settings(
        "symmetric-s16", calibration="percentile", percentile=99.0, output_bits=8
    ),
}
RECURRENT = {
    "8 bits": RecurrentSettings(report_samples=1),
    "16 bits": RecurrentSettings(bits=16, calibration="minmax", report_samples=1),
    "asymmetric gates": RecurrentSettings(
        symmetry=1.0, gates="asymmetric", calibration="minmax", report_samples=1
    ),
}


def cnn() -> Graph:
    """x [1, 2, 8, 8]: convolutions (plain, strided, depthwise), residual sum, pools, functions."""
    builder = GraphBuilder("cnn")

    def add(op: str, *inputs: str, **attributes: object) -> str:
        return builder.add(op, inputs, attributes)  # type: ignore[arg-type]

    def constant(site: int, *shape: int, bits: int, exponent: int) -> str:
        return builder.constant("w", fractions(site, shape, bits, exponent))

    def conv(site: int, x: str, *shape: int, **attributes: object) -> str:
        w = constant(site, *shape, bits=7, exponent=-8)
        b = constant(site + 1, shape[0], bits=6, exponent=-7)
        pads = (shape[2] // 2,) * 4
        return add("Conv", x, w, b, **{**CONV, "pads": pads, **attributes})

    x = builder.input("x", "float32", (1, 2, 8, 8))
    a = add("Relu", conv(20, x, 8, 2, 3, 3))
    b = add("Clip", conv(22, a, 8, 1, 3, 3, group=8), min=0.0, max=6.0)
    c = add("MaxPool", add("Relu", add("Add", conv(24, b, 8, 8, 1, 1), a)), **POOL)
    d = add("AveragePool", conv(26, c, 12, 8, 3, 3, strides=(2, 2)), **POOL)
    w, bias = constant(28, 5, 12, bits=7, exponent=-6), constant(29, 5, bits=6, exponent=-5)
    y = add("Gemm", add("Flatten", d, axis=1), w, bias, transB=1)
    return simplify(builder.build([add("HardSwish", y), add("Sigmoid", y)]))


def scores() -> Graph:
    """x [1, 2, 5, 4]: interpolated twice, then logarithms and the greatest of them."""
    builder = GraphBuilder("scores")

    def add(op: str, *inputs: str, **attributes: object) -> str:
        return builder.add(op, inputs, attributes)  # type: ignore[arg-type]

    x = builder.input("x", "float32", (1, 2, 5, 4))
    larger = add("Interpolate", x, sizes=(1, 2, 8, 7))
    corners = {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}
    smaller = add("Interpolate", add("Relu", larger), sizes=(1, 2, 3, 9), **corners)
    w = builder.constant("w", fractions(80, (9, 12), 7, -4))
    y = add("LogSoftmax", add("MatMul", smaller, w), axis=1)
    top = builder.add_all("TopK", [y], {"k": 5, "axis": 3, "largest": 1})
    least = add("ArgMin", y, axis=3)
    return simplify(builder.build([y, *top, least]))


def lstm() -> Graph:
    """x [6, 1, 5]: an LSTM of 7 cells, then one of 4."""
    builder = GraphBuilder("lstm")
    x = builder.input("x", "float32", (6, 1, 5))
    features = 5
    for site, hidden in ((40, 7), (44, 4)):
        shapes = ((1, 4 * hidden, features), (1, 4 * hidden, hidden), (1, 8 * hidden))
        constants = [
            builder.constant("w", fractions(site + i, shape, 7, -6))
            for i, shape in enumerate(shapes)
        ]
        y = builder.add("LSTM", [x, *constants], {"hidden_size": hidden})
        x = builder.add("Reshape", [y], {"shape": (6, 1, hidden)})
        features = hidden
    return simplify(builder.build([x]))


@cache
def quantized_cnn(name: str) -> Model:
    samples = [{"x": fractions(60 + i, (1, 2, 8, 8), 8, -6)} for i in range(6)]
    return Model(name, quantize_graph(cnn(), samples, SETTINGS[name])[0])


@cache
def quantized_lstm(name: str) -> Model:
    samples = [{"x": fractions(70 + i, (6, 1, 5), 8, -6)} for i in range(3)]
    return Model(name, quantize_recurrent(lstm(), samples, RECURRENT[name])[0])


def constants(graph: Graph) -> Pins:
    """The codes and the scales and zero points of a graph in QDQ form, in any order."""
    codes, scales = set(), set()
    for node in graph.nodes:
        if node.op in ("QuantizeLinear", "DequantizeLinear"):
            codes.add(node.inputs[0])
            scales.update(node.inputs[1:])
    found = {}
    for name, group in (("codes", codes), ("scales", scales)):
        arrays = [graph.constants[value] for value in group if value in graph.constants]
        assert arrays, name
        found[name] = digest_of_set(arrays)
    return found


def c_compiler() -> GeneratedC:
    """The backend of generated C on this machine."""
    program = GeneratedC("c")
    reason = program.unavailable()
    if reason is not None:
        raise UnavailableError(reason)
    return program


def sequence(graph: Graph) -> list[Array]:
    """Codes over the whole range of every input of a step graph that is no state: [T, ...]."""
    found = []
    for i, name in enumerate(graph.own_inputs):
        value = graph.values[name]
        codes = integers(90 + i, (STEPS, *value.shape), *limits(value.dtype))
        found.append(codes.astype(value.dtype))
    return found


def last_states(graph: Graph, arrays: list[Array]) -> list[Array]:
    """Outputs of all steps, of states the last one alone, in the graph's shapes."""
    own = len(graph.own_outputs)
    shapes = [graph.values[name].shape for name in graph.outputs]
    return [
        *(array.reshape(-1, *shape) for array, shape in zip(arrays[:own], shapes, strict=False)),
        *(a.reshape(-1, *s)[-1] for a, s in zip(arrays[own:], shapes[own:], strict=True)),
    ]


@route("quantized-cnn")
def quantized_cnns() -> Pins:
    found = {}
    for name in SETTINGS:
        model = quantized_cnn(name)
        inputs = random_codes(model.integer, SAMPLES)
        pins = constants(model.real)
        pins["interpreter"] = digest(*Reference().run(model, inputs))
        pins["torch"] = digest(*PyTorch().run(model, inputs))
        found |= {f"{name}: {key}": value for key, value in pins.items()}
    return found


@route("quantized-cnn-c")
def quantized_cnns_in_c() -> Pins:
    return {name: cnn_in_c(name) for name in QUICK_CNNS}


@cache
def quantized_scores() -> Model:
    samples = [{"x": fractions(65 + i, (1, 2, 5, 4), 8, -6)} for i in range(6)]
    return Model("scores", quantize_graph(scores(), samples, Settings())[0])


@route("quantized-scores")
def scores_pins() -> Pins:
    model = quantized_scores()
    inputs = random_codes(model.integer, SAMPLES)
    return {
        "interpreter": digest(*Reference().run(model, inputs)),
        "torch": digest(*PyTorch().run(model, inputs)),
    }


@route("quantized-scores-c")
def scores_in_c() -> Pins:
    model = quantized_scores()
    return {"c": digest(*c_compiler().run(model, random_codes(model.integer, SAMPLES)))}


@route("quantized-cnn-c-slow", slow=True)
def more_cnns_in_c() -> Pins:
    """Tables of 16-bit codes take seconds to fit."""
    return {name: cnn_in_c(name) for name in SETTINGS if name not in QUICK_CNNS}


def cnn_in_c(name: str) -> str:
    program = c_compiler()
    model = quantized_cnn(name)
    return digest(*program.run(model, random_codes(model.integer, SAMPLES)))


@route("quantized-lstm")
def quantized_lstms() -> Pins:
    found = {}
    for name in RECURRENT:
        model = quantized_lstm(name)
        inputs = random_codes(model.integer, SAMPLES)
        pins = constants(model.real)
        pins["interpreter"] = digest(*Reference().run(model, inputs))
        pins["torch"] = digest(*PyTorch().run(model, inputs))
        pins["sequence"] = sequence_by_interpreter(model)
        found |= {f"{name}: {key}": value for key, value in pins.items()}
    return found


@route("quantized-lstm-c")
def quantized_lstms_in_c() -> Pins:
    return sequences_in_c({name: quantized_lstm(name) for name in QUICK_LSTMS})


@route("quantized-lstm-c-slow", slow=True)
def more_lstms_in_c() -> Pins:
    names = [name for name in RECURRENT if name not in QUICK_LSTMS]
    return sequences_in_c({name: quantized_lstm(name) for name in names})


def sequence_by_interpreter(model: Model) -> str:
    graph = model.integer
    return digest(*last_states(graph, run_steps(graph, sequence(graph))))


def sequences_in_c(models: Mapping[str, Model]) -> Pins:
    """Whole sequences, step by step and in one call, of several step graphs in one program."""
    c_compiler()
    graphs = [model.integer for model in models.values()]
    compiler, *arguments = TARGETS["c"].compiler_command
    with tempfile.TemporaryDirectory() as folder:
        runs = [[Run(sequence(graph))] for graph in graphs]
        streamed = stream(graphs, runs, Path(folder), compiler, *arguments, "-O2", chunks=(1, 0))
    found = {}
    for name, graph, ((steps, whole),) in zip(models, graphs, streamed, strict=True):
        found[f"{name}: step by step"] = digest(*last_states(graph, steps))
        found[f"{name}: in one call"] = digest(*last_states(graph, whole))
    return found
