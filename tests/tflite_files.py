"""TensorFlow Lite files of small networks, made by the project's own writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from samebits.tflite.file import File, LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.schema import ACTIVATIONS, OPTIONS, OPTIONS_OF, SAME, VALID
from samebits.tflite.writer import to_bytes

Array = np.ndarray[Any, Any]
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "int4": (-8, 7)}


def options_of(op: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an operator, those that are not given by their defaults."""
    if op not in OPTIONS_OF:
        return {}
    fields = OPTIONS[OPTIONS_OF[op]][1]
    plain: dict[str, Any] = {name: field.default for name, field in fields.items()}
    plain |= {name: False for name, field in fields.items() if field.kind == "?"}
    plain |= {name: 0.0 for name, field in fields.items() if field.kind == "f"}
    plain |= {name: "" for name, field in fields.items() if field.kind == "s"}
    return plain | dict(given)


class Net:
    """A network under construction; methods return numbers of tensors."""

    def __init__(self, seed: int = 0, dtype: str = "int8") -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.tensors: list[Tensor] = []
        self.operators: list[LiteOperator] = []
        self.inputs: list[int] = []
        self.others: list[Subgraph] = []

    def tensor(self, shape: Sequence[int], dtype: str = "", **more: Any) -> int:
        name = more.pop("name", f"t{len(self.tensors)}")
        self.tensors.append(Tensor(name, dtype or self.dtype, tuple(shape), **more))
        return len(self.tensors) - 1

    def scale(self) -> Scaling | None:
        """A scale of an activation: symmetric of 16 bits, none of floats."""
        if self.dtype.startswith("float"):
            return None
        scale = float(np.float32(self.rng.uniform(0.01, 0.1)))
        low, high = LIMITS[self.dtype]
        zero = 0 if self.dtype == "int16" else int(self.rng.integers(low, high + 1))
        return Scaling((scale,), (zero,))

    def activation(self, shape: Sequence[int], like: int | None = None) -> int:
        """A tensor that an operator writes, with a scale of its own or that of another."""
        found = self.scale() if like is None else self.tensors[like].quantization
        return self.tensor(shape, quantization=found)

    def input(self, *shape: int) -> int:
        self.inputs.append(self.activation(shape))
        return self.inputs[-1]

    def integers(self, values: Any) -> int:
        """Constant numbers that stand for themselves."""
        array = np.asarray(values, np.int32)
        return self.tensor(array.shape, "int32", array=array)

    def weights(self, shape: Sequence[int], axis: int | None, dtype: str = "int8") -> int:
        """Random weights, with one scale or one for each index of an axis."""
        if self.dtype.startswith("float"):
            array = self.rng.normal(0, 0.3, shape).astype(np.float32)
            return self.tensor(shape, "float32", array=array)
        low, high = LIMITS[dtype]
        array = self.rng.integers(low + 1, high + 1, shape).astype(np.int8)
        count = 1 if axis is None else shape[axis]
        scales = self.rng.uniform(0.002, 0.02, count).astype(np.float32)
        found = Scaling(tuple(scales.tolist()), (0,) * count, axis or 0)
        return self.tensor(shape, dtype, array=array, quantization=found)

    def bias(self, x: int, w: int, count: int) -> int:
        if self.dtype.startswith("float"):
            array = self.rng.normal(0, 0.3, count).astype(np.float32)
            return self.tensor((count,), "float32", array=array)
        kind = "int64" if self.dtype == "int16" else "int32"
        codes = self.rng.integers(-500, 500, count).astype(kind)
        factors = self.tensors[w].quantization
        unit = self.tensors[x].quantization
        assert factors is not None
        assert unit is not None
        scales = np.array(factors.scales, np.float32) * np.float32(unit.scales[0])
        found = Scaling(tuple(scales.tolist()), (0,) * len(scales))
        return self.tensor((count,), kind, array=codes, quantization=found)

    def add(self, op: str, inputs: Sequence[int], outputs: int | Sequence[int], **more: Any) -> int:
        """Append an operator; its first output."""
        listed = [outputs] if isinstance(outputs, int) else list(outputs)
        version = more.pop("version", 1)
        numbers = {name: number for number, name in ACTIVATIONS.items()}
        if "activation" in more:
            more["activation"] = numbers[more["activation"]]
        self.operators.append(
            LiteOperator(op, tuple(inputs), tuple(listed), options_of(op, more), version)
        )
        return listed[0]

    def file(self, *outputs: int) -> File:
        tensors, operators = tuple(self.tensors), tuple(self.operators)
        graph = Subgraph(tensors, operators, tuple(self.inputs), outputs, "main")
        return File((graph, *self.others), "made by a test")

    def bytes(self, *outputs: int) -> bytes:
        return to_bytes(self.file(*outputs))

    # --- states -------------------------------------------------------------------------------

    def variables(self, **initial: Array) -> dict[str, int]:
        """Handles of variables, which a subgraph called once sets to these codes."""
        first = Net(0, self.dtype)
        handles: dict[str, int] = {}
        for name, array in initial.items():
            for net in (self, first):
                handle = net.tensor((), "resource", name=f"{name}.handle")
                net.add("VAR_HANDLE", [], handle, shared_name=name)
                handles[name] = handle if net is self else handles[name]
            value = first.tensor(array.shape, str(array.dtype), array=array)
            first.operators.append(LiteOperator("ASSIGN_VARIABLE", (handle, value), ()))
        tensors, operators = tuple(first.tensors), tuple(first.operators)
        self.others.append(Subgraph(tensors, operators, (), (), "once"))
        self.operators.append(LiteOperator("CALL_ONCE", (), (), {"init_subgraph_index": 1}))
        return handles

    # --- operators ----------------------------------------------------------------------------

    def conv(
        self,
        x: int,
        channels: int,
        kernel: tuple[int, int] = (3, 3),
        stride: int = 1,
        padding: int = SAME,
        **more: Any,
    ) -> int:
        n, h, w, c = self.tensors[x].shape
        weights = self.weights((channels, *kernel, c), 0, more.pop("weights", "int8"))
        inputs = [x, weights, self.bias(x, weights, channels)]
        y = self.activation((n, *_windows((h, w), kernel, stride, padding), channels))
        return self.add(
            "CONV_2D", inputs, y, padding=padding, stride_w=stride, stride_h=stride, **more
        )

    def depthwise(self, x: int, multiplier: int = 1, stride: int = 1, **more: Any) -> int:
        n, h, w, c = self.tensors[x].shape
        channels = c * multiplier
        weights = self.weights((1, 3, 3, channels), 3)
        inputs = [x, weights, self.bias(x, weights, channels)]
        y = self.activation((n, *_windows((h, w), (3, 3), stride, SAME), channels))
        return self.add(
            *("DEPTHWISE_CONV_2D", inputs, y),
            **{**_window(stride, SAME), "multiplier": multiplier, **more},
        )

    def pool(
        self, op: str, x: int, size: tuple[int, int], padding: int = VALID, **more: Any
    ) -> int:
        n, h, w, c = self.tensors[x].shape
        stride = more.pop("stride", size[0])
        y = self.activation((n, *_windows((h, w), size, stride, padding), c), like=x)
        filters = {"filter_h": size[0], "filter_w": size[1]}
        return self.add(op, [x], y, **{**_window(stride, padding), **filters, **more})

    def dense(self, x: int, count: int, axis: int | None = None, **more: Any) -> int:
        shape = self.tensors[x].shape
        weights = self.weights((count, shape[-1]), axis)
        inputs = [x, weights, self.bias(x, weights, count)]
        return self.add("FULLY_CONNECTED", inputs, self.activation((*shape[:-1], count)), **more)

    def reshape(self, x: int, *shape: int) -> int:
        y = self.activation(shape, like=x)
        return self.add("RESHAPE", [x, self.integers(shape)], y)

    def softmax(self, x: int) -> int:
        shape = self.tensors[x].shape
        found = Scaling((1 / 256,), (-128,)) if self.dtype == "int8" else self.scale()
        return self.add("SOFTMAX", [x], self.tensor(shape, quantization=found), beta=1.0)


def _window(stride: int, padding: int) -> dict[str, Any]:
    return {"padding": padding, "stride_w": stride, "stride_h": stride}


def _windows(
    size: tuple[int, int], kernel: tuple[int, int], stride: int, padding: int
) -> tuple[int, ...]:
    if padding == SAME:
        return tuple(-(-n // stride) for n in size)
    return tuple((n - k) // stride + 1 for n, k in zip(size, kernel, strict=True))


def image_net(seed: int = 0, dtype: str = "int8") -> tuple[Net, int]:
    """A small network with most kinds of layers; its output."""
    net = Net(seed, dtype)
    x = net.input(1, 8, 8, 3)
    first = net.conv(x, 4, stride=2, activation="RELU6")
    own = net.conv(net.depthwise(first, activation="RELU"), 4, (1, 1))
    total = net.add("ADD", [first, own], net.activation((1, 4, 4, 4)), activation="RELU")
    pooled = net.pool("AVERAGE_POOL_2D", total, (2, 2))
    y = net.dense(net.reshape(pooled, 1, 16), 5)
    return net, net.softmax(y)


# --- what a definition needs ---------------------------------------------------------------------


def codes_of(net: Net, seed: int) -> list[Array]:
    """Random codes of the network's inputs, their ends among them."""
    rng = np.random.default_rng(seed)
    found = []
    for number in net.inputs:
        tensor = net.tensors[number]
        low, high = LIMITS[tensor.dtype]
        codes = rng.integers(low, high + 1, tensor.shape).astype(tensor.dtype)
        codes.reshape(-1)[:2] = (low, high)
        found.append(codes)
    return found


def pads_of(size: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """(outputs, positions before the image) along an axis."""
    if padding == VALID:
        return (size - kernel) // stride + 1, 0
    out = -(-size // stride)
    return out, max((out - 1) * stride + kernel - size, 0) // 2


def windows(x: Array, kernel: tuple[int, int], stride: int, padding: int) -> Any:
    """(row, column, the part of the image inside, the part of the kernel that meets it)."""
    sizes = [pads_of(n, k, stride, padding) for n, k in zip(x.shape[1:3], kernel, strict=True)]
    (rows, above), (columns, left) = sizes
    for row in range(rows):
        for column in range(columns):
            y, z = row * stride - above, column * stride - left
            inner = x[:, max(y, 0) : y + kernel[0], max(z, 0) : z + kernel[1]]
            taps = (
                slice(max(-y, 0), max(-y, 0) + inner.shape[1]),
                slice(max(-z, 0), max(-z, 0) + inner.shape[2]),
            )
            yield row, column, inner, taps


def streaming_net(seed: int = 0, begun: bool = True) -> tuple[Net, int]:
    """Two convolutions over time, each of the last rows and the new one, as converters of streaming
    models write them; its output. begun: with states that begin with any codes, not with 0."""
    net = Net(seed)
    y = net.input(1, 1, 1, 3)
    shapes = {"a": (1, 4, 1, 3), "b": (1, 2, 1, 4)}
    first = {name: net.rng.integers(-9, 9, s).astype(np.int8) for name, s in shapes.items()}
    handles = net.variables(**first)
    for name, (_, rows, _, c) in shapes.items():
        past = net.activation(shapes[name], y)
        if not begun:
            found = net.tensors[past].quantization
            assert found is not None
            first[name][...] = found.zero_points[0]
        net.add("READ_VARIABLE", [handles[name]], past)
        both = net.activation((1, rows + 1, 1, c), y)
        net.add("CONCATENATION", [past, y], both, axis=1)
        ends = [net.integers(v) for v in ((0, -rows, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1))]
        last = net.activation(shapes[name], y)
        net.add("STRIDED_SLICE", [both, *ends], last, begin_mask=13, end_mask=15)
        net.operators.append(LiteOperator("ASSIGN_VARIABLE", (handles[name], last), ()))
        y = net.conv(both, 4, (rows + 1, 1), padding=VALID, activation="RELU")
    y = net.dense(net.reshape(y, 1, 4), 2)
    return net, net.add(
        "LOGISTIC", [y], net.tensor((1, 2), quantization=Scaling((1 / 256,), (-128,)))
    )
