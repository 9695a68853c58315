"""The compiler to firmware: programs pass the checker and compute the network they come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compare import assert_same
from samebits.errors import InputError, UnsupportedError
from samebits.ir import GraphBuilder
from samebits.ir.interpreter import run
from samebits.npu.compiler.lower import lower_real_graph, port_names
from samebits.npu.machine.assembly import to_text
from samebits.npu.machine.image import read_program, write_program
from samebits.npu.simulator.simulate import simulate
from samebits.pytorch import import_module
from samebits.train.architectures import build

NEAR = 4e-3  # of the largest output: binary16 sums of small networks stay well below
SMALL = {"ivrf": 40, "asvrf0": 60, "asvrf1": 60, "mvrf0": 60, "mvrf1": 60, "mrf": 60}


class Net:
    """A graph in the making, with random weights."""

    def __init__(self, *shape):
        self.builder = GraphBuilder("net")
        self.random = np.random.default_rng(5)
        self.x = self.builder.input("x", "float32", (1, *shape))

    def numbers(self, *shape, scale=None):
        scale = np.prod(shape[1:]) ** -0.5 if scale is None else scale
        return self.constant(self.random.standard_normal(shape) * scale)

    def constant(self, array):
        return self.builder.constant("w", np.asarray(array, np.float32))

    def __call__(self, op, *inputs, **attributes):
        if op in ("Conv", "MaxPool", "AveragePool"):
            rank = len(self.builder.values[inputs[0]].shape) - 2
            for name, count in (("strides", 1), ("dilations", 1), ("pads", 2)):
                given = attributes.get(name, 0 if name == "pads" else 1)
                attributes[name] = (given,) * rank * count if isinstance(given, int) else given
        return self.builder.add(op, inputs, attributes)

    def conv(self, x, outputs, kernel, **attributes):
        """With a bias. kernel: its size or a pair."""
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        inputs = self.builder.values[x].shape[1] // attributes.get("group", 1)
        w = self.numbers(outputs, inputs, *kernel)
        return self("Conv", x, w, self.numbers(outputs, scale=0.3), **attributes)

    def gemm(self, x, outputs):
        w = self.numbers(outputs, self.builder.values[x].shape[1])
        return self("Gemm", x, w, self.numbers(outputs, scale=0.3), transB=1)

    def graph(self, *outputs):
        return self.builder.build(outputs)


def random_inputs(graph, seed=0):
    random = np.random.default_rng(seed)
    arrays = [random.standard_normal(graph.values[n].shape) for n in graph.inputs]
    return [a.astype(np.float16).astype(np.float32) for a in arrays]


def simulated(graph, inputs, native, mantissa=15, **depths):
    """(program, flat outputs in the order of the graph)."""
    program, image = lower_real_graph(graph, native, mantissa, depths)
    names, outputs = port_names(graph)
    shapes = {h.name: h.shape for h in program.hints if h.kind == "input"}
    given = {n: a.reshape(shapes[n]) for n, a in zip(names, inputs, strict=True)}
    result = simulate(program, image, given)
    return program, [result.outputs[name].reshape(-1) for name in outputs]


def check_close(graph, native, **depths):
    inputs = random_inputs(graph)
    program, found = simulated(graph, inputs, native, **depths)
    for y, expected in zip(found, run(graph, inputs), strict=True):
        error = np.abs(y.astype(np.float64) - expected.reshape(-1)).max()
        assert error <= NEAR * np.abs(expected).max(), (native, error)
    return program, found


# --- operators --------------------------------------------------------------------------------


def nets():
    """(name, graph), small, with sizes that are no multiples of the native dimension."""

    def net(name, shape, make):
        made = Net(*shape)
        outputs = make(made, made.x)
        yield name, made.graph(*([outputs] if isinstance(outputs, str) else outputs))

    image, odd = (20, 6, 5), (20, 7, 7)
    yield from net("gemm", (20,), lambda n, x: n("Relu", n.gemm(x, 30)))
    yield from net("matmul", (20,), lambda n, x: n("MatMul", x, n.numbers(20, 9)))
    yield from net("sequence", (6, 20), lambda n, x: n("MatMul", x, n.numbers(20, 9)))
    yield from net("conv1x1", image, lambda n, x: n.conv(x, 24, 1))
    yield from net("conv3x3", image, lambda n, x: n("Relu", n.conv(x, 24, 3, pads=1)))
    yield from net("strided", odd, lambda n, x: n.conv(x, 9, 3, strides=2, pads=1))
    yield from net("uneven", odd, lambda n, x: n.conv(x, 9, (3, 2), pads=(2, 0, 0, 1)))
    yield from net("dilated", odd, lambda n, x: n.conv(x, 9, 3, dilations=2, pads=(2, 1, 0, 2)))
    yield from net("depthwise", image, lambda n, x: n("Relu", n.conv(x, 20, 3, pads=1, group=20)))
    yield from net("groups", image, lambda n, x: n.conv(x, 40, 3, pads=1, group=5))
    yield from net("conv1d", (20, 9), lambda n, x: n.conv(x, 9, (3,), strides=2, pads=1))
    yield from net("padded", image, lambda n, x: n.conv(pad(n, x), 9, 3))
    yield from net("batch_norm", image, lambda n, x: batch_norm(n, x))
    yield from net("folded", image, lambda n, x: n("Relu", batch_norm(n, n.conv(x, 24, 1))))
    yield from net(
        "relu6", image, lambda n, x: n("Clip", scaled(n, n.conv(x, 9, 1)), min=0.0, max=6.0)
    )
    yield from net("clip", image, lambda n, x: n("Clip", x, min=-0.5, max=0.75))
    yield from net("sigmoid", image, lambda n, x: n("Tanh", n("Sigmoid", n.conv(x, 9, 1))))
    yield from net("residual", image, residual)
    yield from net("twice", image, lambda n, x: n("Add", x, x))
    yield from net(
        "difference", image, lambda n, x: n("Sub", n("Sub", n.constant(1), x), n.conv(x, 20, 1))
    )
    yield from net(
        "scalar", image, lambda n, x: n("Mul", n("Add", x, n.constant(0.5)), n.constant(-3))
    )
    yield from net("pixels", image, lambda n, x: n("Add", x, n.numbers(1, 20, 6, 5, scale=1)))
    yield from net("gate", image, gate)
    for op in ("LeakyRelu", "HardSigmoid", "HardSwish", "Swish", "Abs", "Neg"):
        yield from net(op, image, lambda n, x, op=op: n(op, n.conv(x, 9, 1)))
    yield from net(
        "min_max", image, lambda n, x: n("Min", n("Max", x, n.conv(x, 20, 1)), n.conv(x, 20, 1))
    )
    yield from net("divide", image, lambda n, x: n("Div", x, n.constant(3)))
    for ceil in (0, 1):
        window = {"kernel_shape": (3, 3), "strides": 2, "pads": 1, "ceil_mode": ceil}
        for size in (7, 8):
            named = (20, size, size)
            yield from net(
                f"max_pool_{ceil}_{size}", named, lambda n, x, w=window: n("MaxPool", x, **w)
            )
            for inside in (0, 1):
                w = {**window, "count_include_pad": inside}
                name = f"average_pool_{ceil}_{size}_{inside}"
                yield from net(name, named, lambda n, x, w=w: n("AveragePool", x, **w))
    yield from net(
        "pool_2x2",
        image,
        lambda n, x: n("MaxPool", n.conv(x, 20, 3, pads=1), kernel_shape=(2, 2), strides=2),
    )
    yield from net("pool_1d", (20, 9), lambda n, x: n("MaxPool", x, kernel_shape=(4,), strides=2))
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        yield from net(op, image, lambda n, x, op=op: n(op, x))
    for op in ("ReduceMean", "ReduceMax", "ReduceSum"):
        yield from net(op, image, lambda n, x, op=op: n(op, x, axes=(2, -1), keepdims=0))
    yield from net("mean_rows", image, lambda n, x: n("ReduceMean", x, axes=(2,)))
    yield from net("mean_steps", (6, 20), lambda n, x: n("ReduceMean", x, axes=(1,), keepdims=0))
    yield from net(
        "flatten", image, lambda n, x: n.gemm(n("Flatten", n("Relu", n.conv(x, 9, 3))), 7)
    )
    yield from net(
        "relu_flat", image, lambda n, x: n.gemm(scaled(n, n("Flatten", n.conv(x, 9, 3)), 0), 7)
    )
    yield from net(
        "head",
        image,
        lambda n, x: n.gemm(n("Reshape", n("GlobalAveragePool", x), shape=(1, 20)), 7),
    )
    yield from net(
        "squeezed", image, lambda n, x: n("Squeeze", n("GlobalAveragePool", x), axes=(3,))
    )
    yield from net(
        "channels_last",
        (6, 5, 20),
        lambda n, x: n.conv(n("Transpose", x, perm=(0, 3, 1, 2)), 9, 3, pads=1),
    )
    yield from net("shuffled", image, shuffled)
    yield from moved(net, image)
    yield from net(
        "sliced",
        image,
        lambda n, x: n.conv(n("Slice", x, starts=(3,), ends=(17,), axes=(1,), steps=(2,)), 9, 1),
    )
    yield from net("concat", image, concat)
    yield from net(
        "concat_output",
        image,
        lambda n, x: n("Relu", n("Concat", n.conv(x, 32, 1), n.conv(x, 5, 3, pads=1), axis=1)),
    )
    yield from net("concat_twice", image, lambda n, x: n.conv(n("Concat", x, x, axis=1), 9, 1))
    yield from net("two_outputs", (20,), lambda n, x: (n.gemm(x, 9), n("Relu", n.gemm(x, 30))))
    yield from net("kept_output", (20,), kept_output)
    yield from net("same_output", (20,), same_output)
    yield from net("input_output", (20,), lambda n, x: (n.gemm(x, 9), n("Identity", x)))
    yield from net(
        "cast", (20,), lambda n, x: n.gemm(n("Cast", n("Cast", x, to="float64"), to="float32"), 9)
    )


def moved(net, image):
    """Data movement of every kind is places that the next operator reads."""

    def picked(n, x, count, axis=1):
        order = np.random.default_rng(0).permutation(count)
        return n("Gather", x, n.builder.constant("order", order), axis=axis)

    yield from net("picked", image, lambda n, x: n.conv(picked(n, n.conv(x, 9, 1), 9), 7, 3))
    yield from net("picked_flat", (20,), lambda n, x: n.gemm(picked(n, n.gemm(x, 9), 9), 7))
    yield from net("tiled", (20,), lambda n, x: n.gemm(n("Tile", n.gemm(x, 9), repeats=(1, 3)), 7))
    yield from net(
        "expanded",
        image,
        lambda n, x: n("Add", x, n("Expand", n("GlobalMaxPool", x), shape=(1, 20, 6, 5))),
    )
    yield from net(
        "depth_to_space",
        (20, 3, 3),
        lambda n, x: n.gemm(n("Flatten", n("DepthToSpace", n.conv(x, 16, 1), blocksize=2)), 5),
    )
    yield from net(
        "resized",
        (20, 3, 4),
        lambda n, x: n.gemm(n("Flatten", n("Resize", x, sizes=(1, 20, 2, 3))), 5),
    )


def pad(n, x):
    return n("Pad", x, pads=(0, 0, 1, 2, 0, 0, 0, 1))


def batch_norm(n, x):
    count = n.builder.values[x].shape[1]
    parameters = [n.numbers(count, scale=0.5) for _ in range(3)]
    return n("BatchNormalization", x, *parameters, n.constant(n.random.uniform(0.5, 2, count)))


def scaled(n, x, low=None):
    """Twice as large; with `low`, a relu of it with a factor for each element."""
    if low is None:
        return n("Mul", x, n.constant(8))
    return n("Relu", n("Mul", x, n.numbers(*n.builder.values[x].shape, scale=1)))


def residual(n, x):
    hidden = n("Relu", n.conv(x, 20, 3, pads=1))
    return n("Relu", n("Add", n.conv(hidden, 20, 3, pads=1), x))


def gate(n, x):
    mean = n("GlobalAveragePool", x)
    return n("Mul", n("Sigmoid", n.conv(n("Relu", n.conv(mean, 8, 1)), 20, 1)), n.conv(x, 20, 1))


def shuffled(n, x):
    split = n("Transpose", n("Reshape", x, shape=(1, 4, 5, 6, 5)), perm=(0, 2, 1, 3, 4))
    return n.conv(n("Reshape", split, shape=(1, 20, 6, 5)), 10, 3, pads=1, group=2)


def concat(n, x):
    parts = [n("Relu", n.conv(x, 20, 3, pads=1)), n.conv(x, 9, 1), x]
    return n.conv(n("Relu", n("Concat", *parts, axis=1)), 16, 1)


def same_output(n, x):
    hidden = n.gemm(x, 9)
    return hidden, hidden


def kept_output(n, x):
    hidden = n.gemm(x, 9)
    return n("Relu", hidden), hidden


NETS = dict(nets())


@pytest.mark.parametrize("name", NETS)
def test_operators_compute_the_network(name):
    for native in (8, 16, 32):
        _, roomy = check_close(NETS[name], native)
        # Memories only decide where numbers lie: with little room the same bits.
        _, crowded = simulated(NETS[name], random_inputs(NETS[name]), native, **SMALL)
        for a, b in zip(crowded, roomy, strict=True):
            assert_same(a.view(np.uint16), b.view(np.uint16), range(len(a)))


@given(data=st.data())
@settings(max_examples=40)
def test_windows_of_any_geometry(data):
    def each(low, high, count=2):
        return tuple(data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    kernel, strides, dilations = each(1, 3), each(1, 3), each(1, 2)
    size = tuple(n + 4 for n in each(1, 4))
    pads = tuple(p % kernel[i % 2] for i, p in enumerate(each(0, 2, 4)))
    channels, native = (
        data.draw(st.sampled_from([1, 8, 9, 20])),
        data.draw(st.sampled_from([8, 16])),
    )
    net = Net(channels, *size)
    window = {"strides": strides, "dilations": dilations, "pads": pads}
    op = data.draw(st.sampled_from(["Conv", "MaxPool", "AveragePool"]))
    if op == "Conv":
        group = channels if data.draw(st.booleans()) else 1
        y = net.conv(net.x, 20 if group == 1 else 2 * channels, kernel, group=group, **window)
    else:
        ceil = data.draw(st.integers(0, 1))
        inside = {"count_include_pad": data.draw(st.integers(0, 1))} if op == "AveragePool" else {}
        y = net(op, net.x, kernel_shape=kernel, ceil_mode=ceil, **window, **inside)
    check_close(net.graph(y), native)


# --- architectures ----------------------------------------------------------------------------


def architecture(name, shape):
    torch.manual_seed(3)
    module = build(name, shape, 10)
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
            layer.bias.data.normal_(0, 0.1)
    return import_module(module, (torch.zeros(1, *shape),))


def operations(program):
    """Instructions of all chains without memories and addresses."""
    named = (i.op.removesuffix("_inc") for i in program.instructions)
    return [op for op in named if op != "s_wr"]


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8"])
def test_architectures_on_digits(name):
    graph = architecture(name, (1, 8, 8))
    programs = [check_close(graph, native)[0] for native in (8, 16, 32)]
    assert operations(programs[0]) == operations(programs[1]) == operations(programs[2])


def test_resnet8_on_color_images():
    graph = architecture("resnet8", (3, 32, 32))
    program, found = check_close(graph, 16)
    products = [i for i in program.instructions if i.op == "mv_mul"]
    assert len(products) == 10  # 9 convolutions and a linear layer, one chain each
    # What follows a product is in its chain: 10 biases, 3 residual sums, 7 relus.
    chains = " ".join(operations(program)).split(" end_chain")
    fused = " ".join(chain for chain in chains if "mv_mul" in chain)
    assert (fused.count("vv_add"), fused.count("v_relu")) == (13, 7)
    crowded_depths = {"ivrf": 512, "asvrf0": 128, "asvrf1": 128, "mrf": 128}
    crowded, same = simulated(graph, random_inputs(graph), 16, **crowded_depths)
    assert crowded.depths["dram"] > 0
    assert crowded.depths["mdram"] > 0
    assert all(crowded.depths[memory] <= most for memory, most in crowded_depths.items())
    assert_same(same[0].view(np.uint16), found[0].view(np.uint16), range(10))


@pytest.mark.slow
def test_mobilenet():
    check_close(architecture("mobilenetv2", (3, 16, 16)), 32)


def test_short_mantissas_lose_precision_but_not_the_network():
    graph = architecture("mlp", (1, 8, 8))
    inputs = random_inputs(graph)
    expected = run(graph, inputs)[0].reshape(-1)
    errors = [
        np.abs(simulated(graph, inputs, 16, mantissa)[1][0] - expected).max()
        for mantissa in (15, 7, 4)
    ]
    assert errors == sorted(errors)
    assert errors[-1] < np.abs(expected).max()


# --- layout -----------------------------------------------------------------------------------


def test_a_convolution_block_is_one_chain():
    net = Net(16, 4, 4)
    y = net("Relu", net("Add", batch_norm(net, net.conv(net.x, 16, 1)), net.x))
    program, _ = check_close(net.graph(y), 16)
    wanted = "v_rd v_wr v_wr end_chain v_rd mv_mul vv_add vv_add v_relu v_wr end_chain"
    assert operations(program) == wanted.split()


def test_a_clip_to_6_stays_in_the_chain():
    net = Net(16, 4, 4)
    y = net("Clip", net.conv(net.x, 16, 1), min=0.0, max=6.0)
    wanted = "v_rd mv_mul vv_add vv_mul vv_max vv_mul v_relu v_wr end_chain"
    assert operations(check_close(net.graph(y), 16)[0]) == wanted.split()


def test_weights_of_a_flattened_image_follow_its_pixels():
    net = Net(20, 3, 2)
    program, image = lower_real_graph(
        net.graph(net.gemm(net("Flatten", net("Relu", net.x)), 7)), 16
    )
    tiles = [h for h in program.hints if h.memory == "mrf"]
    assert [h.shape for h in tiles] == [(7, 20, 3, 2)]
    assert len(image.entries["mrf"]) == 12


def test_inputs_that_are_flattened_first_are_vectors():
    net = Net(1, 8, 8)
    program, _ = lower_real_graph(net.graph(net.gemm(net("Flatten", net.x), 7)), 16)
    assert [(h.kind, h.shape) for h in program.hints[:2]] == [("input", (64,)), ("output", (7,))]


def test_hints_name_constants_and_names_become_identifiers():
    builder = GraphBuilder("7 ../../etc")
    x = builder.input("my input:0", "float32", (1, 4))
    w = builder.constant("w", np.ones((4, 3), np.float32))
    other = builder.input("my input 0", "float32", (1, 3))
    graph = builder.build(
        [builder.add("Add", [builder.add("MatMul", [x, w], name="fc/1"), other], outputs=["\n;x"])]
    )
    program, _ = lower_real_graph(graph, 8)
    names = {h.name: h.shape for h in program.hints}
    assert names == {"my_input_0": (4,), "my_input_0_2": (3,), "x": (3,), "fc_1_weight": (3, 4)}
    assert program.name == "_7_etc"


def test_programs_are_what_their_files_say(tmp_path):
    graph = NETS["residual"]
    program, image = lower_real_graph(graph, 16)
    path = tmp_path / "net.nnp"
    write_program(path, program, image)
    again, image_again = read_program(path)
    assert to_text(again) == to_text(program)
    x = {"x": random_inputs(graph)[0]}
    a, b = simulate(program, image, x), simulate(again, image_again, x)
    for name, found in a.outputs.items():
        assert_same(b.outputs[name].view(np.uint16), found.view(np.uint16), range(found.size))


# --- quantized graphs -------------------------------------------------------------------------


def quantized(zero_point):
    """Conv, QuantizeLinear, DequantizeLinear, Gemm, with int8 weights."""
    net = Net(3, 4, 4)
    builder, random = net.builder, np.random.default_rng(1)

    def weights(*shape):
        codes = builder.constant("codes", random.integers(-127, 128, shape).astype(np.int8))
        scale = builder.constant("scale", np.full(shape[0], 2.0**-8, np.float32))
        zero = builder.constant("zero", np.zeros(shape[0], np.int8))
        return net("DequantizeLinear", codes, scale, zero, axis=0)

    x = net("Conv", net.x, weights(5, 3, 3, 3), pads=1)
    scale = net.constant(2.0**-4)
    zero = builder.constant("zero", np.array(zero_point, np.int8))
    x = net("DequantizeLinear", net("QuantizeLinear", x, scale, zero), scale, zero)
    y = net("Gemm", net("Flatten", x), weights(4, 80), transB=1)
    return net.graph(y)


@pytest.mark.parametrize("zero_point", [0, -128])
def test_quantization_of_activations_is_dropped(zero_point):
    # Codes from -128 on with the zero point there hold no negative numbers: that is a relu.
    graph = quantized(zero_point)
    inputs = random_inputs(graph)
    program, (found,) = simulated(graph, inputs, 16)
    assert ("v_relu" in operations(program)) == (zero_point == -128)
    expected = run(graph, inputs)[0].reshape(-1)
    # As near as 8 bits are to real numbers: the scale is 1/16, over 80 inputs.
    assert np.abs(found - expected).max() < 0.5
    assert np.abs(expected).max() > 1


# --- errors -----------------------------------------------------------------------------------


def test_one_error_lists_every_operator():
    net = Net(4, 5, 5)
    a = net("Erf", net.x)
    b = net("Sin", a)
    c = net("ArgMax", net("Flatten", net("Relu", net.x)), axis=1, keepdims=1, select_last_index=0)
    d = net("Div", net.x, net.constant([0.0]))
    with pytest.raises(UnsupportedError) as caught:
        lower_real_graph(net.graph(b, c, d), 16)
    assert str(caught.value).splitlines() == [
        "net: the neural processor cannot compute:",
        "  node 'Erf' (Erf): it has no instructions for this; replace this operator",
        "  node 'Sin' (Sin): it has no instructions for this; replace this operator",
        "  node 'ArgMax' (ArgMax): it has no instructions for this; end the network before it "
        "and leave the rest to the host",
        "  node 'Div' (Div): expected a constant divisor other than 0",
    ]


def refused():
    """(graph, part of the message)."""

    def net(shape, make, **attributes):
        made = Net(*shape)
        return made.graph(make(made, made.x, **attributes))

    image = (4, 6, 6)
    large = np.full((4, 3), 1e6)
    yield net((4,), lambda n, x: n("MatMul", x, n.constant(large))), "magnitude below 65520"
    yield net((4,), lambda n, x: n("Transpose", x, perm=(1, 0))), None
    yield net(image, lambda n, x: n("Transpose", n("Relu", x), perm=(0, 1, 3, 2))), "in the order"
    cut = {"starts": (1,), "ends": (5,), "axes": (2,), "steps": (1,)}
    yield net(image, lambda n, x: n.conv(n("Slice", x, **cut), 3, 3)), "was cut or reordered"
    yield net(image, lambda n, x: n("Relu", pad(n, x))), "explicit Pad"
    ends = {"pads": (0, 0, 1, 1, 0, 0, 1, 1)}
    for mode, value in (("reflect", 0.0), ("constant", 2.0)):
        yield (
            net(
                image,
                lambda n, x, **a: n.conv(n("Pad", x, **ends, **a), 3, 3),
                mode=mode,
                value=value,
            ),
            f"expected a Pad by zeros (mode constant), found mode {mode} and value {value}",
        )
    holed = np.where(np.arange(12).reshape(4, 3) == 7, np.inf, 1)
    yield (
        net((4,), lambda n, x: n("MatMul", x, n.constant(holed))),
        "expected finite weights, found inf",
    )
    yield (
        net((4,), lambda n, x: n("Add", x, n.constant(np.array([1, 2, np.nan, 3])))),
        "expected finite constants, found nan",
    )
    yield net(image, lambda n, x: n("Concat", x, x, axis=1)), "in the order"
    yield (
        net(image, lambda n, x: n("Add", x, n("Transpose", x, perm=(0, 1, 3, 2)))),
        "laid out alike",
    )
    yield net((2, 2, 2, 2), lambda n, x: n("Relu", x)), "expected [1, C]"
    yield net(image, lambda n, x: n("ReduceMean", x, axes=(1,))), None
    yield net(image, lambda n, x: n("Conv", x, n("Relu", n.numbers(3, 4, 1, 1)))), None
    yield net((4,), lambda n, x: n("MatMul", x, n("Reshape", x, shape=(4, 1)))), None
    yield net((20,), lambda n, x: n("MatMul", n.constant(np.ones((3, 1))), x)), "found a constant"
    yield (
        net(image, lambda n, x: n("MatMul", x, n("Transpose", x, perm=(0, 1, 3, 2)))),
        "matrices whose rows or columns are pixels",
    )
    cut = {"starts": (1,), "ends": (3,), "axes": (3,), "steps": (1,)}
    yield (
        net(image, lambda n, x: n("ReduceSum", n("Slice", x, **cut), axes=(1, 3))),
        "features of a pixel, all pixels or both",
    )
    yield (
        net(image, lambda n, x: n("Conv", n.numbers(1, 4, 6, 6), n("Relu", x))),
        "found a constant",
    )


def test_what_the_machine_cannot_lay_out_is_refused():
    for graph, message in refused():
        if message is None:
            check_close(graph, 16)
        else:
            with pytest.raises(UnsupportedError, match="net: the neural processor") as caught:
                lower_real_graph(graph, 16)
            assert message in str(caught.value)


def test_a_border_bears_no_name_of_an_equal_constant():
    net = Net(3, 6, 6)
    bias = net.constant(np.zeros(8))
    x = net("Conv", net.x, net.numbers(8, 3, 3, 3), bias, pads=1)
    graph = net.graph(net("MaxPool", x, kernel_shape=(3, 3), pads=1))
    program, image = lower_real_graph(graph, 8)
    held = {
        hint.name: image.entries[hint.memory][hint.address].tolist()
        for hint in program.hints
        if hint.kind == "tensor" and hint.memory in ("ivrf", "asvrf0", "dram")
    }
    assert held["zero"] == held["Conv_bias"] == [0.0] * 8
    assert held["minus_infinity"] == [-np.inf] * 8
    check_close(graph, 8)


def test_batches_are_refused():
    builder = GraphBuilder("net")
    x = builder.input("x", "float32", (2, 4))
    with pytest.raises(UnsupportedError, match="import the model for batch 1"):
        lower_real_graph(builder.build([builder.add("Relu", [x])]), 16)


@pytest.mark.parametrize(
    ("depths", "message"),
    [
        ({"mrf": 8}, "weights Conv_weight: expected at most 8 tiles"),
        ({"mrf": 17, "mdram": 17}, "expected weights of at most 17 native tiles"),
        ({"asvrf1": 4}, "expected room for one row of the image in asvrf1, found a depth of 4"),
        ({"ivrf": 3, "dram": 20}, "expected room for .* native vectors in dram"),
    ],
)
def test_a_memory_that_is_too_small_is_named(depths, message):
    with pytest.raises(UnsupportedError, match=message):
        lower_real_graph(NETS["residual"], 32, depths=depths)


def test_settings_out_of_range():
    graph = NETS["gemm"]
    for sizes in ((4, 15), (16, 1), (16, 16)):
        with pytest.raises(InputError, match="expected a native dimension"):
            lower_real_graph(graph, *sizes)
    for depths in ({"ivrf": 0}, {"netq": 5}, {"dram": 1 << 21}):
        with pytest.raises(InputError, match="expected depths of ivrf"):
            lower_real_graph(graph, 16, depths=depths)
