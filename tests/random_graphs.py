"""Seeded random quantized real graphs: all operators that lower, all types, awkward parameters."""

from __future__ import annotations

import math

import numpy as np

from samebits.ir import Graph, GraphBuilder

DTYPES = ("int8", "uint8", "int8", "uint8", "int16", "uint16")
UNARY = (
    ("Tanh", {}),
    ("Sigmoid", {}),
    ("Gelu", {"approximate": "none"}),
    ("HardSwish", {}),
    ("Erf", {}),
    ("Softplus", {}),
    ("Elu", {"alpha": 0.75}),
    ("LeakyRelu", {"alpha": 0.125}),
    ("Relu", {}),
    ("Abs", {}),
    ("Neg", {}),
    ("Clip", {"min": -0.7, "max": 1.3}),
    ("Exp", {}),
    ("Identity", {}),
    ("HardSigmoid", {"alpha": 0.25, "beta": 0.5}),
)
RATIONAL = tuple(
    entry
    for entry in UNARY
    if entry[0] not in ("Tanh", "Sigmoid", "Gelu", "Erf", "Softplus", "Elu", "Exp")
)


class RandomGraph:
    """Grows a graph node by node; `tensors` are dequantized values to build on.

    exact: only what the interpreter computes in rationals, and no real biases (whose rounding is
    the one that lowering adds).
    """

    def __init__(
        self, seed: int, depth: int, dtypes: tuple[str, ...] = DTYPES, exact: bool = False
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = GraphBuilder(f"random-{seed}")
        self.dtypes, self.exact = dtypes, exact
        self.tensors: list[str] = []
        self.spans: dict[str, float] = {}
        shape = (1, int(self.rng.integers(1, 5)), *map(int, self.rng.integers(3, 8, 2)))
        if self.rng.random() < 0.2:
            shape = (1, int(self.rng.integers(2, 20)))
        span = float(2.0 ** self.rng.integers(-3, 4))
        x = self.b.input("x", "float32", shape)
        self.tensors.append(self.quantized(x, span))
        for _ in range(depth):
            self.grow()

    def graph(self) -> Graph:
        """The graph; the last tensor and sometimes an earlier one are outputs."""
        outputs = [self.tensors[-1]]
        if len(self.tensors) > 2 and self.rng.random() < 0.3:
            outputs.append(self.tensors[int(self.rng.integers(1, len(self.tensors) - 1))])
        return self.b.build(outputs)

    # --- pieces ---------------------------------------------------------------------------------

    def shape(self, name: str) -> tuple[int, ...]:
        return self.b.values[name].shape

    def scalar(self, value: float) -> str:
        return self.b.constant("scale", np.array(value, np.float32))

    def quantized(self, x: str, span: float, dtype: str | None = None) -> str:
        """QuantizeLinear and DequantizeLinear; ranges a bit too small saturate."""
        dtype = dtype or str(self.rng.choice(self.dtypes))
        levels = 2.0 ** (8 * np.dtype(dtype).itemsize)
        scale = max(2 * span, 1e-6) / levels * 2.0 ** self.rng.uniform(-1.5, 0.5)
        if self.rng.random() < 0.4:
            scale = 2.0 ** round(math.log2(scale))
        low = int(np.iinfo(dtype).min)
        zero = 0 if low else int(levels / 2)
        if self.rng.random() < 0.5:
            zero += int(self.rng.integers(-20, 21))
        if low == 0 and self.rng.random() < 0.3:
            zero = 0
        parameters = [self.scalar(scale), self.b.constant("zero", np.array(zero, dtype))]
        codes = self.b.add("QuantizeLinear", [x, *parameters], {"axis": 1})
        out = self.b.add("DequantizeLinear", [codes, *parameters], {"axis": 1})
        self.spans[out] = float(np.float32(scale)) * levels / 2
        return out

    def weights(self, shape: tuple[int, ...], axis: int | None) -> str:
        """Constant codes, per tensor or per channel of `axis`, int8, uint8 or int16."""
        dtype = str(self.rng.choice(["int8", "int8", "int8", "uint8", "int16"]))
        info = np.iinfo(dtype)
        codes = self.rng.integers(info.min, info.max + 1, shape).astype(dtype)
        if self.rng.random() < 0.1:
            codes[:] = info.max
        count = shape[axis] if axis is not None and self.rng.random() < 0.6 else None
        scales = 2.0 ** self.rng.uniform(-9, -5, count or ()) / (256 if dtype == "int16" else 1)
        if self.rng.random() < 0.4:
            scales = 2.0 ** np.round(np.log2(scales))
        middle = 128 if dtype == "uint8" else 0
        shift = 3 if self.rng.random() < 0.3 and dtype != "int16" else 0  # 16 bits with it stay 16
        zeros = np.full(count or (), middle + shift).astype(dtype)
        return self.b.add(
            "DequantizeLinear",
            [
                self.b.constant("weight", codes),
                self.b.constant("scales", np.asarray(scales, np.float32)),
                self.b.constant("zeros", np.asarray(zeros)),
            ],
            {"axis": axis if count else 1 if len(shape) > 1 else 0},
        )

    def pick(self, rank: int | None = None) -> str:
        fitting = [t for t in self.tensors if rank is None or len(self.shape(t)) == rank]
        index = len(fitting) - 1 - min(int(self.rng.geometric(0.6)) - 1, len(fitting) - 1)
        return fitting[index]

    def grow(self) -> None:
        """One more layer."""
        x = self.tensors[-1] if self.rng.random() < 0.8 else self.pick()
        rank = len(self.shape(x))
        kinds = ["unary", "unary", "affine", "pair", "movement", "softmax", "reduce", "extreme"]
        if rank == 4:
            kinds += ["conv", "conv", "conv", "transposed", "pool", "pool", "flatten", "resize"]
        if rank in (2, 3):
            kinds += ["gemm", "gemm", "matmul"]
        kind = str(self.rng.choice(kinds))
        try:
            out = getattr(self, kind)(x)
        except ValueError:  # a window that does not fit
            return
        if out is not None and self.b.values[out].size <= 4096:
            self.tensors.append(out)

    # --- layers ---------------------------------------------------------------------------------

    def activated(self, x: str, span: float) -> tuple[str, float]:
        """Sometimes a Relu or Clip before the QuantizeLinear."""
        draw = self.rng.random()
        if draw < 0.3:
            return self.b.add("Relu", [x]), span
        if draw < 0.5:
            low, high = sorted(float(np.float32(v)) for v in self.rng.uniform(-span, span, 2))
            return self.b.add("Clip", [x], {"min": low, "max": high}), span
        return x, span

    def conv(self, x: str) -> str:
        c = self.shape(x)[1]
        groups = int(self.rng.choice([g for g in (1, 1, c, 2) if c % g == 0]))
        outputs = groups * int(self.rng.integers(1, 4))
        kernel = tuple(int(k) for k in self.rng.integers(1, 4, 2))
        attributes = {
            "strides": tuple(int(s) for s in self.rng.integers(1, 3, 2)),
            "pads": tuple(int(p) for p in self.rng.integers(0, 3, 4)),
            "dilations": tuple(int(d) for d in self.rng.integers(1, 3, 2)),
            "group": groups,
        }
        wt = self.weights((outputs, c // groups, *kernel), 0)
        inputs = [x, wt, *self.bias(outputs)]
        y = self.b.add("Conv", inputs, attributes)
        span = self.spans[x] * 0.5 * math.sqrt(c // groups * kernel[0] * kernel[1])
        return self.quantized(*self.activated(y, span))

    def bias(self, outputs: int) -> list[str]:
        if self.exact or self.rng.random() < 0.3:
            return []
        return [self.b.constant("bias", self.rng.normal(0, 1, outputs).astype(np.float32))]

    def transposed(self, x: str) -> str:
        c = self.shape(x)[1]
        groups = int(self.rng.choice([g for g in (1, 1, c) if c % g == 0]))
        per_group = int(self.rng.integers(1, 3))
        kernel = tuple(int(k) for k in self.rng.integers(1, 4, 2))
        strides = tuple(int(s) for s in self.rng.integers(1, 3, 2))
        attributes = {
            "strides": strides,
            "pads": tuple(int(p) for p in self.rng.integers(0, 2, 4)),
            "dilations": (1, 1),
            "group": groups,
            "output_padding": tuple(int(self.rng.integers(0, s)) for s in strides),
        }
        wt = self.weights((c, per_group, *kernel), 1 if groups == 1 else None)
        y = self.b.add("ConvTranspose", [x, wt, *self.bias(groups * per_group)], attributes)
        return self.quantized(*self.activated(y, self.spans[x] * math.sqrt(c)))

    def gemm(self, x: str) -> str:
        if len(self.shape(x)) == 3:
            return self.matmul(x)
        k = self.shape(x)[1]
        outputs = int(self.rng.integers(1, 9))
        transposed = int(self.rng.integers(0, 2))
        wt = self.weights((outputs, k) if transposed else (k, outputs), 0 if transposed else 1)
        attributes = {"transB": transposed, "alpha": float(self.rng.choice([1.0, 0.75]))}
        y = self.b.add("Gemm", [x, wt, *self.bias(outputs)], attributes)
        return self.quantized(*self.activated(y, self.spans[x] * 0.5 * math.sqrt(k)))

    def matmul(self, x: str) -> str:
        k = self.shape(x)[-1]
        span = self.spans[x] * math.sqrt(k)
        matrices = [t for t in self.tensors if len(self.shape(t)) > 1]
        partners = [t for t in matrices if self.shape(t)[-2] == k]
        if partners and self.rng.random() < 0.5:
            other = str(self.rng.choice(partners))
            if len(self.shape(other)) == len(self.shape(x)):
                y = self.b.add("MatMul", [x, other])
                return self.quantized(y, span * self.spans[other])
        outputs = int(self.rng.integers(1, 9))
        y = self.b.add("MatMul", [x, self.weights((k, outputs), 1)])
        if self.rng.random() < 0.5:
            y = self.b.add("Add", [y, *(self.bias(outputs) or [self.scalar(0.0)])])
        return self.quantized(*self.activated(y, span))

    def unary(self, x: str) -> str:
        y = x
        for _ in range(int(self.rng.integers(1, 4))):
            known = RATIONAL if self.exact else UNARY
            op, attributes = known[int(self.rng.integers(0, len(known)))]
            y = self.b.add(op, [y], attributes)
        if self.rng.random() < 0.2:
            y = self.b.add("Mul", [x, y])
        return self.quantized(y, min(self.spans[x], 4.0))

    def affine(self, x: str) -> str:
        shape = self.shape(x)
        axis = 1 if len(shape) > 1 else 0
        dims = [size if i == axis else 1 for i, size in enumerate(shape)]
        gains = self.rng.normal(0, 1, dims)
        offsets = self.rng.normal(0, 1, dims)
        if self.rng.random() < 0.6:  # on a common grid: a multiply-add; else tables per channel
            gains, offsets = np.round(gains * 256) / 256, np.round(offsets * 256) / 256
        if self.rng.random() < 0.3:
            gains, offsets = gains.reshape(-1)[:1], offsets.reshape(-1)[:1]
        y = self.b.add("Mul", [x, self.b.constant("gain", gains.astype(np.float32))])
        y = self.b.add("Add", [y, self.b.constant("offset", offsets.astype(np.float32))])
        if math.prod(dims) > 1 and self.b.values[x].size and self.is_wide(x):
            return self.quantized(self.b.add("Identity", [x]), self.spans[x])
        return self.quantized(*self.activated(y, self.spans[x]))

    def is_wide(self, x: str) -> bool:
        producer = next(n for n in self.b.nodes if x in n.outputs)
        return self.b.values[producer.inputs[0]].dtype in ("int16", "uint16")

    def pair(self, x: str) -> str:
        same = [t for t in self.tensors if self.shape(t) == self.shape(x)]
        other = str(self.rng.choice(same))
        op = str(self.rng.choice(["Add", "Add", "Sub", "Mul"]))
        if self.rng.random() < 0.2:
            dims = self.shape(x)[1:]
            codes = self.rng.integers(-128, 128, dims).astype(np.int8)
            constant = [self.b.constant("operand", codes), self.scalar(0.01)]
            zero = self.b.constant("zero", np.array(0, np.int8))
            other = self.b.add("DequantizeLinear", [*constant, zero], {"axis": 0})
            self.spans[other] = 1.28
        y = self.b.add(op, [x, other])
        spans = (self.spans[x], self.spans[other])
        span = spans[0] * spans[1] if op == "Mul" else max(spans)
        return self.quantized(*self.activated(y, span))

    def pool(self, x: str) -> str | None:
        h, w = self.shape(x)[2:]
        kind = str(self.rng.choice(["MaxPool", "AveragePool", "GlobalAveragePool"]))
        if kind == "GlobalAveragePool":
            return self.quantized(self.b.add(kind, [x]), self.spans[x] / 4)
        kernel = tuple(int(k) for k in self.rng.integers(1, min(4, h + 1, w + 1), 2))
        attributes = {
            "kernel_shape": kernel,
            "strides": tuple(int(s) for s in self.rng.integers(1, 3, 2)),
            "pads": tuple(int(self.rng.integers(0, max(k, 1))) // 2 for k in (*kernel, *kernel)),
            "dilations": (1, 1),
            "ceil_mode": int(self.rng.integers(0, 2)),
        }
        if kind == "MaxPool":
            y = self.b.add(kind, [x], attributes)
            if self.rng.random() < 0.5:
                self.spans[y] = self.spans[x]
                return y
            return self.quantized(y, self.spans[x])
        include = int(self.rng.integers(0, 2))
        if include:
            attributes["ceil_mode"] = 0
        y = self.b.add(kind, [x], {**attributes, "count_include_pad": include})
        return self.quantized(y, self.spans[x] / 2)

    def movement(self, x: str) -> str | None:
        shape = self.shape(x)
        op = str(self.rng.choice(["Transpose", "Reshape", "Concat", "Slice", "Pad", "Split"]))
        if op == "Transpose":
            perm = (0, *(1 + self.rng.permutation(len(shape) - 1)))
            y = self.b.add(op, [x], {"perm": tuple(int(p) for p in perm)})
        elif op == "Reshape":
            size = math.prod(shape[1:])
            factor = int(self.rng.choice([f for f in range(1, size + 1) if size % f == 0]))
            y = self.b.add(op, [x], {"shape": (shape[0], factor, size // factor)})
        elif op == "Concat":
            same = [t for t in self.tensors if self.shape(t) == shape]
            parts = [x, str(self.rng.choice(same))]
            axis = int(self.rng.integers(1, len(shape)))
            y = self.b.add(op, parts, {"axis": axis})
            return self.quantized(y, max(self.spans[p] for p in parts))
        elif op == "Slice":
            axis = int(self.rng.integers(1, len(shape)))
            step = int(self.rng.choice([1, 2, -1]))
            size = shape[axis]
            start = int(self.rng.integers(0, size))
            ends = size if step > 0 else -size - 1
            y = self.b.add(
                op, [x], {"starts": (start,), "ends": (ends,), "steps": (step,), "axes": (axis,)}
            )
        elif op == "Pad":
            pads = tuple(int(p) for p in self.rng.integers(0, 3, 2 * (len(shape) - 1)))
            half = len(shape) - 1
            y = self.b.add(
                op,
                [x],
                {"pads": (0, *pads[:half], 0, *pads[half:]), "mode": "constant", "value": 0.0},
            )
        else:
            if shape[1] < 2:
                return None
            sizes = (1, shape[1] - 1)
            y, z = self.b.add_all(op, [x], {"axis": 1, "sizes": sizes}, outputs=["a", "b"])
            self.spans[z] = self.spans[x]
            self.tensors.append(z)
        self.spans[y] = self.spans[x]
        return y if self.rng.random() < 0.5 else self.quantized(y, self.spans[x])

    def flatten(self, x: str) -> str:
        y = self.b.add("Flatten", [x], {"axis": 1})
        self.spans[y] = self.spans[x]
        return y

    def resize(self, x: str) -> str:
        n, c, h, w = self.shape(x)
        sizes = (n, c, h * int(self.rng.integers(1, 3)), w * 2)
        attributes = {
            "sizes": sizes,
            "scales": tuple(a / b for a, b in zip(sizes, self.shape(x), strict=True)),
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        y = self.b.add("Resize", [x], attributes)
        self.spans[y] = self.spans[x]
        return y

    def softmax(self, x: str) -> str | None:
        if self.exact:
            return None
        axis = int(self.rng.integers(1, len(self.shape(x))))
        y = self.b.add("Softmax", [x], {"axis": axis})
        return self.quantized(y, 1.0)

    def reduce(self, x: str) -> str | None:
        rank = len(self.shape(x))
        if rank < 3:
            return None
        op = str(self.rng.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"]))
        axes = (int(self.rng.integers(1, rank)),)
        y = self.b.add(op, [x], {"axes": axes, "keepdims": int(self.rng.integers(0, 2))})
        if op in ("ReduceMax", "ReduceMin"):
            self.spans[y] = self.spans[x]
            return y
        return self.quantized(y, self.spans[x])

    def extreme(self, x: str) -> str:
        op = str(self.rng.choice(["Max", "Min"]))
        y = self.b.add(op, [x, x if self.rng.random() < 0.5 else self.twin(x)])
        self.spans[y] = self.spans[x]
        return self.quantized(y, self.spans[x])

    def twin(self, x: str) -> str:
        """Another tensor with the same quantization: x mirrored along its last axis."""
        axis = len(self.shape(x)) - 1
        attributes = {"starts": (-1,), "ends": (-(1 << 31),), "steps": (-1,), "axes": (axis,)}
        y = self.b.add("Slice", [x], attributes)
        self.spans[y] = self.spans[x]
        return y


def random_graph(
    seed: int, depth: int, dtypes: tuple[str, ...] = DTYPES, exact: bool = False
) -> Graph:
    """A quantized real graph from a seed."""
    return RandomGraph(seed, depth, dtypes, exact).graph()


def awkward_inputs(graph: Graph, seed: int, samples: int = 2) -> list[np.ndarray]:
    """Codes: random ones, and the ends of the range and the middle, which saturate and tie."""
    rng = np.random.default_rng(seed)
    out = []
    for name in graph.inputs:
        value = graph.values[name]
        info = np.iinfo(value.dtype)
        shape = (samples * value.shape[0], *value.shape[1:])
        codes = rng.integers(info.min, info.max + 1, shape)
        ends = rng.choice([info.min, info.max, (info.min + info.max + 1) // 2], shape)
        out.append(np.where(rng.random(shape) < 0.3, ends, codes).astype(value.dtype))
    return out
