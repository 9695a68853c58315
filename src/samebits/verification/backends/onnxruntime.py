"""onnxruntime: the QDQ exports with and without its optimizations, and the integer export."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np

from samebits.errors import UnsupportedError
from samebits.ir import Graph
from samebits.model import Model
from samebits.verification.backend import Array, Backend, Factory
from samebits.verification.inputs import chunks, dequantize, joined

KINDS = ("", "-optimized", "-float", "-integer")
LARGEST_ERROR = 0.1  # of outputs that are the same but for roundings
SILENT = 4  # its log: what fails is raised anyway


class OnnxRuntime(Backend):
    """One way to run a model in onnxruntime.

    onnxruntime:           QDQ export, functions as tables, graph optimizations off
    onnxruntime-optimized: the same with all optimizations
    onnxruntime-float:     QDQ export as other tools write it, functions as float operators; all
                           optimizations
    onnxruntime-integer:   integer export; codes in and out (the others take and give reals)
    """

    needs = "graph"

    def __init__(self, name: str) -> None:
        self.name = name
        self.integer = name.endswith("integer")
        self.floats = name.endswith("float")
        self.optimized = not name.endswith("runtime")

    def unavailable(self) -> str | None:
        try:
            import onnxruntime  # noqa: F401
        except ImportError:
            return f"{self.name}: expected the package onnxruntime; pip install onnxruntime"
        return None

    def run(self, model: Model, inputs: Sequence[Array]) -> list[Array]:
        """As `Backend.run`, one piece of the graph's own size after the other, on one thread.

        Raises UnsupportedError with onnxruntime's words where it refuses the model.
        """
        import onnxruntime

        from samebits.onnx import to_integer, to_qdq

        options = onnxruntime.SessionOptions()
        if not self.optimized:  # all optimizations are the default
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.graph_optimization_level = level
        options.intra_op_num_threads = 1
        options.log_severity_level = SILENT
        tables: Literal["float", "gather"] = "float" if self.floats else "gather"
        exported = to_integer(model.integer) if self.integer else to_qdq(model.real, tables)
        graph = model.integer
        if not self.integer:
            inputs = [
                dequantize(a, graph.values[n]) for a, n in zip(inputs, graph.inputs, strict=True)
            ]
        try:
            session = onnxruntime.InferenceSession(
                exported.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            names = [entry.name for entry in session.get_inputs()]
            parts = [dict(zip(names, part, strict=True)) for part in chunks(graph, inputs)]
            return joined([session.run(None, part) for part in parts])
        except Exception as error:  # of a foreign library: it has no common base class
            raise UnsupportedError(f"{self.name} refuses the model: {error}") from error


def not_taken(graph: Graph, sample: Sequence[Array] = ()) -> str:
    """Why onnxruntime with its default options does not take a real graph as `Network.save` writes
    it, in a sentence: it refuses to load it, or computes other numbers of the sample than with its
    basic optimizations; "" where it takes it.

    The sentence says too if onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        return (
            "not checked: whether onnxruntime loads the network, since it is not installed; pip "
            "install onnxruntime"
        )
    from samebits.onnx import to_qdq

    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    written = to_qdq(graph, "float").SerializeToString()
    remedy = "there, set graph_optimization_level to ORT_ENABLE_BASIC or less"
    outputs = []
    for level in ("ORT_ENABLE_ALL", "ORT_ENABLE_BASIC"):
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        try:
            session = onnxruntime.InferenceSession(
                written, options, providers=["CPUExecutionProvider"]
            )
            if not sample:
                return ""
            names = [entry.name for entry in session.get_inputs()]
            outputs.append(session.run(None, dict(zip(names, sample, strict=True))))
        except Exception as error:  # of a foreign library: it has no common base class
            found = " ".join(str(error).split()).rstrip(".")
            return (
                f"onnxruntime {onnxruntime.__version__} does not load the network with its default "
                f"options: {found}; {remedy}"
            )
    if all(_near(found, wanted) for found, wanted in zip(*outputs, strict=True)):
        return ""
    return (
        f"onnxruntime {onnxruntime.__version__} computes other numbers with its default options "
        f"than with fewer optimizations; {remedy}"
    )


def _near(found: Array, wanted: Array) -> bool:
    """Whether two outputs agree but for roundings: an error of less than a tenth, as a root of mean
    squares. Integers, which are places, may differ by one rounding before."""
    if found.dtype.kind != "f":
        return True
    wide, error = wanted.astype(np.float64), found.astype(np.float64) - wanted
    return bool((error * error).sum() <= LARGEST_ERROR**2 * (wide * wide).sum())


@cache
def pairs_saturate() -> bool:
    """Whether onnxruntime's 8-bit kernels add two products in 16 bits here, saturating.

    They do on x86 processors without VNNI (onnxruntime issue 14642; the instruction is vpmaddubsw),
    so its optimized graphs differ there from its plain ones. Asked of the runtime itself: four
    products of 255 and 127 must add up to 129,540.
    """
    import onnxruntime
    from onnx import TensorProto, helper

    x, w, y = (
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", TensorProto.UINT8, [1, 4]),
            ("w", TensorProto.INT8, [4, 1]),
            ("y", TensorProto.INT32, [1, 1]),
        )
    )
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "pairs", [x, w], [y])
    opsets = [helper.make_opsetid("", 18)]
    probe = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(
        probe.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    codes = {"x": np.full((1, 4), 255, np.uint8), "w": np.full((4, 1), 127, np.int8)}
    return int(session.run(None, codes)[0][0, 0]) != 4 * 255 * 127


def _factory(name: str) -> Factory:
    return lambda work: OnnxRuntime(name)


BACKENDS = {name: _factory(name) for name in (f"onnxruntime{kind}" for kind in KINDS)}
