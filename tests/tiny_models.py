"""Small models on disk for tests of commands and backends; importable by name like `compare`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from samebits.ir import Graph, GraphBuilder

_MADE: dict[str, Path] = {}


def quantized_graph(batch: int = 1) -> Graph:
    """x [batch, 4] -> Gemm -> Tanh -> Gemm -> y [batch, 3], all int8; y leaves as reals."""
    rng = np.random.default_rng(3)
    builder = GraphBuilder("tiny")

    def rounded(x: str, scale: float, zero: int, hint: str) -> str:
        s, z = builder.constant("scale", np.float32(scale)), builder.constant("zero", np.int8(zero))
        codes = builder.add("QuantizeLinear", [x, s, z], outputs=[f"{hint}.codes"])
        return builder.add("DequantizeLinear", [codes, s, z], outputs=[hint])

    def gemm(x: str, outputs: int, inputs: int) -> str:
        codes = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
        s, z = builder.constant("scale", np.float32(0.01)), builder.constant("zero", np.int8(0))
        w = builder.add("DequantizeLinear", [builder.constant("w", codes), s, z])
        b = builder.constant("b", rng.normal(size=outputs).astype(np.float32))
        return builder.add("Gemm", [x, w, b], {"transB": 1})

    x = rounded(builder.input("x", "float32", (batch, 4)), 0.05, 3, "x.q")
    h = rounded(gemm(x, 5, 4), 0.1, 0, "h")
    h = rounded(builder.add("Tanh", [h], outputs=["t"]), 1 / 128, 0, "t.q")
    return builder.build([rounded(gemm(h, 3, 5), 0.0625, -5, "y")])


def quantized_file(path: Path, batch: int = 1) -> Path:
    """`quantized_graph` as an ONNX file."""
    from samebits.onnx import save_qdq

    save_qdq(quantized_graph(batch), path)
    return path


def float_file(path: Path, inputs: tuple[Any, ...] = ("N", 4), classes: int = 3) -> Path:
    """x -> Flatten -> Gemm -> y as a float ONNX file."""
    features = int(np.prod(inputs[1:]))
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(classes, features)).astype(np.float32)
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "float",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [inputs[0], classes])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path)
    return path


@functools.cache
def digits() -> Any:
    """The bundled data."""
    from samebits.data import load

    return load("digits")


def trained_folder(tmp_path_factory: Any, numerics: str = "bfp") -> Path:
    """What `samebits train --data digits --arch mlp --epochs 1` writes; made once per session."""
    if numerics not in _MADE:
        from samebits.train.run.config import TrainConfig
        from samebits.train.run.loop import train

        folder: Path = tmp_path_factory.mktemp(f"mlp-{numerics}")
        train(TrainConfig(data="digits", arch="mlp", numerics=numerics, epochs=1), digits(), folder)
        _MADE[numerics] = folder
    return _MADE[numerics]
