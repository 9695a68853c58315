"""Loops, as converters write recurrent layers of Keras, become their turns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import samebits as sb
from samebits import ledger
from samebits.errors import InputError, UnsupportedError
from samebits.excerpt import WHOLE, Excerpt
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.tflite import from_bytes, loops, to_bytes
from samebits.tflite.file import File, LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.loops import LOOPS_MOST, STEPS_MOST, TURNS_MOST, VARIABLES_MOST, unrolled
from samebits.tflite.peers.process import computed, missing
from tflite_files import Net, codes_of, options_of
from tflite_networks import TURNS, looping_net, sequence_net


def by_hand(net: Net, y: int) -> tuple[Net, int]:
    """The turns written one after the other."""
    flat = Net(3, net.dtype)
    flat.tensors, flat.inputs = list(net.tensors), list(net.inputs)
    body = net.others[1]
    (_, start, x), h = net.operators[0].inputs, net.operators[0].outputs[1]
    held = start
    for turn in range(TURNS):
        places = {body.inputs[1]: held, body.inputs[2]: x}
        at = flat.tensor((), "int32", array=np.array(turn, np.int32))
        places[body.inputs[0]] = at
        for number, tensor in enumerate(body.tensors):
            if number not in places:
                flat.tensors.append(replace(tensor, name=f"{tensor.name}.{turn}"))
                places[number] = len(flat.tensors) - 1
        for operator in body.operators[1:]:
            flat.operators.append(
                replace(
                    operator,
                    inputs=tuple(places[n] for n in operator.inputs),
                    outputs=tuple(places[n] for n in operator.outputs),
                )
            )
        held = places[body.outputs[1]]
    moved = {h: held}
    for operator in net.operators[1:]:
        inputs = tuple(moved.get(n, n) for n in operator.inputs)
        flat.operators.append(replace(operator, inputs=inputs))
    return flat, y


@pytest.mark.parametrize("meaning", ["exact", "tflite"])
def test_a_loop_is_its_turns(meaning, tmp_path):
    net, y = looping_net()
    flat, _ = by_hand(net, y)
    found = []
    for name, made in (("loop", net), ("flat", flat)):
        path = tmp_path / f"{name}.tflite"
        path.write_bytes(made.bytes(y))
        found.append(sb.load(path, meaning=meaning).model.integer)
    results = []
    for seed in range(5):
        (ours,), (theirs,) = (run(graph, codes_of(net, seed)) for graph in found)
        np.testing.assert_array_equal(ours, theirs)
        results.append(ours)
    assert np.unique(results).size > 4


def test_a_float_loop_is_quantized(tmp_path):
    net, y = looping_net("float32")
    path = tmp_path / "f.tflite"
    path.write_bytes(net.bytes(y))
    x = np.random.default_rng(1).normal(0, 1, (30, 4, 1, 6)).astype(np.float32)
    loaded = sb.load(path)
    assert loaded.kind == "float network"
    assert [node.op for node in loaded.model.real.nodes].count("Gather") == TURNS
    assert x.shape[1:] == loaded.inputs[0].shape


def refused(file: File, meaning: str = "tflite") -> str:
    part = Excerpt(meaning=meaning) if meaning != "exact" else WHOLE
    with pytest.raises((InputError, UnsupportedError)) as caught:
        from_bytes(to_bytes(file), "f.tflite", part)
    return str(caught.value)


def test_loops_that_are_refused():
    net, y = looping_net(turns=TURNS_MOST + 5, step=0)
    assert f"operator 0 (WHILE): expected at most {TURNS_MOST} turns" in refused(net.file(y))
    net, y = looping_net()
    inner = net.others[0]
    computed_ = (*inner.operators, LiteOperator("LESS", (1, 2), inner.outputs))
    net.others[0] = replace(inner, operators=computed_[1:])
    assert "expected a number of turns that the file fixes, found one" in refused(net.file(y))
    net, y = looping_net()
    net.others[1] = replace(net.others[1], outputs=net.others[1].outputs[:2])
    assert "expected 3 outputs of its body, found 2" in refused(net.file(y))
    net, y = looping_net()
    net.others.clear()
    assert "expected another subgraph, found number 1" in refused(net.file(y))
    net, y = looping_net()
    nested = replace(net.others[1], operators=(*net.others[1].operators, net.operators[0]))
    net.others[1] = nested
    assert "expected no loop inside, found one" in refused(net.file(y))


def more(graph: Subgraph, *operators: LiteOperator, **tensors: Tensor) -> Subgraph:
    """A subgraph with further operators and tensors, which are named by number."""
    return replace(
        graph,
        tensors=(*graph.tensors, *tensors.values()),
        operators=(*graph.operators, *operators),
    )


def counted(graph: Subgraph, count: int) -> Subgraph:
    """A subgraph with further sums of known numbers."""
    one = len(graph.tensors)
    tensors = {"one": Tensor("one", "int32", (), np.array(1, np.int32))}
    tensors |= {f"o{k}": Tensor(f"o{k}", "int32", ()) for k in range(count)}
    options = options_of("ADD", {})
    sums = [LiteOperator("ADD", (one, one), (one + 1 + k,), options) for k in range(count)]
    return more(graph, *sums, **tensors)


@pytest.mark.parametrize("part", [0, 1])
def test_what_is_computed_here_is_counted(part):
    turns = 1000
    net, y = looping_net(turns=turns)
    net.others[part] = counted(net.others[part], STEPS_MOST // turns)
    assert f"expected at most {STEPS_MOST} operators in all turns, found more" in refused(
        net.file(y)
    )
    net, y = looping_net()
    net.others[part] = counted(net.others[part], STEPS_MOST // turns)
    assert unrolled(net.file(y)).subgraphs[0].operators


def test_loops_and_variables_are_counted():
    net, y = looping_net()
    net.operators = net.operators[:1] * (LOOPS_MOST + 1)
    net.others[0] = replace(
        net.others[0],
        tensors=(*net.others[0].tensors, Tensor("no", "bool", (), np.array(False))),
        operators=(),
        outputs=(len(net.others[0].tensors),),
    )
    for place in range(1, len(net.operators)):
        first = len(net.tensors)
        net.tensors += [net.tensors[number] for number in net.operators[0].outputs]
        net.operators[place] = replace(net.operators[0], outputs=(first, first + 1, first + 2))
    message = refused(net.file(y))
    assert f"operator {LOOPS_MOST} (WHILE): expected at most {LOOPS_MOST} loops" in message
    net, y = looping_net()
    given = (0,) * (VARIABLES_MOST + 1)
    net.operators[0] = replace(net.operators[0], inputs=given)
    assert f"expected at most {VARIABLES_MOST} variables, found" in refused(net.file(y))


def test_names_and_inputs_of_copies_are_charged():
    net, y = looping_net(turns=100)
    body = net.others[1]
    tensors = list(body.tensors)
    tensors[body.outputs[1]] = replace(tensors[body.outputs[1]], name="n" * 60_000)
    net.others[1] = replace(body, tensors=tuple(tensors))
    with ledger.memory_limit("20MB"), ledger.load():
        assert "its turns: expected at most 20971520 bytes in memory" in refused(net.file(y))
    net, y = looping_net(turns=100)
    body = net.others[1]
    wide = Tensor("wide", "int8", (1, 5))
    joined = LiteOperator("CONCATENATION", (body.inputs[1],) * 4096, (len(body.tensors),))
    net.others[1] = more(body, joined, wide=wide)
    with ledger.memory_limit("3MB"), ledger.load():
        assert "its turns: expected at most 3145728 bytes in memory" in refused(net.file(y))


def test_what_follows_from_shared_weights_is_charged():
    net, y = looping_net()
    body = net.others[1]
    inner = Net(5)
    inner.tensors, inner.operators = list(body.tensors), list(body.operators)
    h = body.outputs[1]
    small = inner.dense(inner.dense(h, 20_000), 5)
    last = inner.tensor((1, 5), quantization=body.tensors[h].quantization)
    inner.add("LEAKY_RELU", [small], last, alpha=0.5)
    outputs = (body.outputs[0], last, body.outputs[2])
    net.others[1] = Subgraph(
        tuple(inner.tensors), tuple(inner.operators), body.inputs, outputs, "body"
    )
    with ledger.memory_limit("8MB"), ledger.load():
        assert "turn 2, operator 5 (FULLY_CONNECTED)" in refused(net.file(y))


def test_a_constant_of_a_loop_is_there_once():
    net, y = looping_net()
    found = unrolled(net.file(y)).subgraphs[0]
    constants = [tensor.array for tensor in net.others[1].tensors if tensor.array is not None]
    held = [tensor.array for tensor in found.tensors]
    for array in constants:
        assert sum(each is array for each in held) == (array.dtype != np.int32 or array.size > 1)


@pytest.mark.parametrize("op", ["ADD", "SUB", "MUL", "MINIMUM", "LESS"])
def test_numbers_are_no_truth_values(op):
    net, y = looping_net()
    at = len(net.others[0].tensors)
    true = Tensor("true", "bool", (), np.array(True))
    inner = LiteOperator(op, (at, at), (at + 1,), options_of(op, {}))
    net.others[0] = more(net.others[0], inner, true=true, found=Tensor("found", "bool", ()))
    assert "expected a number of turns that the file fixes, found one" in refused(net.file(y))


def test_truth_values_are_computed():
    net, y = looping_net()
    inner = net.others[0]
    at, (whether,) = len(inner.tensors), inner.outputs
    true = Tensor("true", "bool", (), np.array(True))
    both = LiteOperator("LOGICAL_AND", (whether, at), (at + 1,))
    inner = more(inner, both, true=true, found=Tensor("found", "bool", ()))
    net.others[0] = replace(inner, outputs=(at + 1,))
    plain, _ = looping_net()
    names = [[op.op for op in unrolled(n.file(y)).subgraphs[0].operators] for n in (net, plain)]
    assert names[0] == names[1]


def test_a_counter_has_no_activation():
    net, y = looping_net()
    body = net.others[1]
    first = replace(body.operators[0], options=options_of("ADD", {"activation": 2}))
    net.others[1] = replace(body, operators=(first, *body.operators[1:]))
    assert "expected a number of turns that the file fixes, found one" in refused(net.file(y))


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"shape": (5, 1)}, r"int8 [5, 1] of scale "),
        ({"dtype": "int16"}, r"int16 [1, 5] of scale "),
        ({"quantization": Scaling((0.5,), (7,))}, r"int8 [1, 5] of scale 0.5 and zero point 7;"),
        ({"quantization": None}, r"int8 [1, 5] without a scale;"),
    ],
)
def test_a_variable_has_one_type(changed, found):
    for part, ends, what in (
        (0, "inputs", "inputs of its condition"),
        (1, "inputs", "inputs of its body"),
        (1, "outputs", "outputs of its body"),
    ):
        net, y = looping_net()
        graph = net.others[part]
        tensors, number = list(graph.tensors), getattr(graph, ends)[1]
        tensors[number] = replace(tensors[number], **changed)
        net.others[part] = replace(graph, tensors=tuple(tensors))
        message = refused(net.file(y))
        assert f"operator 0 (WHILE): expected tensor 't{number}', number 1 of the {what}" in message
        assert f", found {found}" in message
    net, y = looping_net()
    number = net.operators[0].outputs[1]
    net.tensors[number] = replace(net.tensors[number], **changed)
    message = refused(net.file(y))
    assert f"expected tensor 't{number}', number 1 of the outputs, as" in message
    assert f", found {found}" in message


def test_what_a_loop_leaves_has_the_files_names(tmp_path):
    net, y = looping_net()
    h = net.operators[0].outputs[1]
    path = tmp_path / "loop.tflite"
    path.write_bytes(net.bytes(y))
    for meaning in ("exact", "tflite"):
        (value,) = sb.load(path, meaning=meaning, end_at=("t1",)).outputs
        assert value.name == net.tensors[h].name == "t1"
        with pytest.raises(InputError, match="--end-at: expected a tensor of the network"):
            sb.load(path, meaning=meaning, end_at=(f"t10/{TURNS - 1}",))
    (graph,) = unrolled(net.file(h)).subgraphs[:1]
    assert [graph.tensors[number].name for number in graph.outputs] == ["t1"]


def test_a_loop_without_turns_leaves_its_variables():
    net, _ = looping_net(turns=0)
    at, h, through = net.operators[0].outputs
    graph = unrolled(net.file(at, h, through)).subgraphs[0]
    found = [graph.tensors[number] for number in graph.outputs]
    assert [tensor.name for tensor in found] == [
        net.tensors[number].name for number in (at, h, net.inputs[0])
    ]
    assert found[0].array == 0
    np.testing.assert_array_equal(found[1].array, net.tensors[net.operators[0].inputs[1]].array)


def test_messages_name_the_place_in_the_file():
    net, y = looping_net()
    body = net.others[1]
    wrong = replace(body.operators[-1], op="CUSTOM foo", options={})
    net.others[1] = replace(body, operators=(*body.operators[:-1], wrong))
    place = f"operator 0 (WHILE), turn 0, operator {len(body.operators) - 1} (CUSTOM foo)"
    assert place in refused(net.file(y))
    net, y = looping_net()
    net.operators[1] = replace(net.operators[1], op="CUSTOM foo", options={})
    assert "\n  operator 1 (CUSTOM foo)" in refused(net.file(y))


# --- lists ---------------------------------------------------------------------------------------


def integers(net: Net, y: int):
    """The integer graph of a network in the meaning `exact`."""
    return lower_graph(from_bytes(net.bytes(y), "f.tflite").graph)


@pytest.mark.parametrize(
    ("turns", "given"), [(1, False), (3, False), (TURNS, False), (1, True), (3, True)]
)
def test_a_list_is_what_its_turns_wrote(turns, given):
    net, _ = sequence_net("int8", turns, given)
    found = integers(net, net.operators[0].outputs[3])
    ops = [op.op for op in unrolled(net.file(net.operators[0].outputs[3])).subgraphs[0].operators]
    assert ops.count("CONCATENATION") == (turns > 1 or turns < TURNS)
    assert ops.count("SLICE") == (given and turns < TURNS)
    for seed in range(5):
        codes = codes_of(net, seed)
        (rows,) = run(found, codes)
        for turn in range(turns):
            single, _ = looping_net("int8", turn + 1)
            (h,) = run(integers(single, single.operators[0].outputs[1]), codes[:1])
            np.testing.assert_array_equal(rows[turn], h)
        rest = codes[1] if given else np.zeros_like(rows)
        np.testing.assert_array_equal(rows[turns:], rest[turns:])
        assert np.unique(rows[:turns]).size > 2


def test_a_list_of_floats_is_quantized(tmp_path):
    net, y = sequence_net()
    path = tmp_path / "f.tflite"
    path.write_bytes(net.bytes(y))
    loaded = sb.load(path)
    assert loaded.kind == "float network"
    assert [node.op for node in loaded.model.real.nodes].count("Concat") == 1


def test_the_runtime_for_microcontrollers_has_no_lists():
    net, y = sequence_net("int8")
    message = refused(net.file(y))
    assert "operator 0 (WHILE): expected shapes that no turn changes, as TensorFlow Lite" in message
    assert "found 0 rows of tensor" in message


def changed(net: Net, op: str, number: int, **more) -> None:
    """Change an operator of the body, the number-th of its kind from the end."""
    body = net.others[1]
    at = [k for k, each in enumerate(body.operators) if each.op == op][-number]
    operators = list(body.operators)
    operators[at] = replace(operators[at], **more)
    net.others[1] = replace(body, operators=tuple(operators))


def test_lists_that_are_refused(monkeypatch):
    net, y = sequence_net()
    joined = net.others[1].operators[-1].inputs
    changed(net, "CONCATENATION", 1, inputs=joined[:2])
    assert "of shape [1, 1, 5], found [4, 1, 5]" in refused(net.file(y), "exact")
    net, y = sequence_net()
    changed(net, "CONCATENATION", 1, inputs=(*joined, joined[1]))
    assert "of shape [5, 1, 5], found [4, 1, 5]" in refused(net.file(y), "exact")
    net, y = sequence_net()
    body = net.others[1]
    first = next(op for op in body.operators if op.op == "SLICE")
    tensors = list(body.tensors)
    begin = tensors[first.inputs[1]]
    tensors[first.inputs[1]] = replace(begin, array=begin.array + np.array([TURNS, 0, 0], np.int32))
    net.others[1] = replace(body, tensors=tuple(tensors))
    assert "which has 4, found 4 to 5" in refused(net.file(y), "exact")
    net, y = sequence_net()
    empty = first.outputs[0]  # list[:0] in the first turn, read by an operator
    body = net.others[1]
    at = len(body.tensors)
    net.others[1] = more(
        body, LiteOperator("NEG", (empty,), (at,)), no=Tensor("no", "float32", (1,))
    )
    assert "found none" in refused(net.file(y), "exact")
    net, y = sequence_net()
    monkeypatch.setattr(loops, "PARTS_MOST", 9)
    assert "expected lists of at most 9 parts in all turns, found more" in refused(
        net.file(y), "exact"
    )


def grown(doublings: int, wide: int, slices: int) -> File:
    """A loop whose body doubles its list, joins it with itself, and takes a row of it."""
    net, y = sequence_net()
    body = net.others[1]
    tensors, operators = list(body.tensors), list(body.operators)
    front = next(op for op in operators if op.op == "SLICE")
    now, rows, options = operators[-1].outputs[0], TURNS, {"axis": 0, "activation": 0}

    def add(op, inputs, count, how):
        tensors.append(Tensor(f"more{len(tensors)}", "float32", (count, 1, 5)))
        operators.append(LiteOperator(op, inputs, (len(tensors) - 1,), how))
        return len(tensors) - 1

    for _ in range(doublings):
        rows *= 2
        now = add("CONCATENATION", (now, now), rows, options)
    add("CONCATENATION", (now,) * max(wide, 1), 1, options)
    for _ in range(slices):
        add("SLICE", (now, *front.inputs[1:]), 1, {})
    net.others[1] = replace(body, tensors=tuple(tensors), operators=tuple(operators))
    return net.file(y)


@pytest.mark.parametrize(("doublings", "wide", "slices"), [(17, 1500, 0), (15, 0, 160)])
def test_lists_that_grow_are_counted_before_they_are_made(doublings, wide, slices, monkeypatch):
    """A small file of a large list: what operators go through is charged before."""
    made, joined = [], loops.joined

    def counted(parts):
        found = joined(parts)
        made.append(len(found))
        return found

    monkeypatch.setattr(loops, "joined", counted)
    said = refused(grown(doublings, wide, slices), "exact")
    assert "expected lists of at most 4194304 parts in all turns, found more" in said
    assert max(made) <= 4 << doublings


def test_numbers_that_a_turn_moves_have_the_shapes_of_the_file():
    for op, number in (("RESHAPE", 2), ("CONCATENATION", 2)):
        net, y = sequence_net()
        body = net.others[1]
        (to,) = [op_ for op_ in body.operators if op_.op == op][-number].outputs
        tensors = list(body.tensors)
        tensors[to] = replace(tensors[to], shape=(2,))
        net.others[1] = replace(body, tensors=tuple(tensors))
        assert f"expected tensor 't{to}' of shape [" in refused(net.file(y), "exact")


@pytest.mark.slow
def test_a_loop_is_that_of_the_runtime():
    if reason := missing("tflm"):
        pytest.skip(reason)
    net, y = looping_net()
    data = net.bytes(y)
    graph = from_bytes(data, "f", Excerpt(meaning="tflite")).graph
    samples = np.stack([codes_of(net, seed)[0] for seed in range(50)])
    theirs = computed("tflm", data, [samples], [y])[y]
    assert np.unique(theirs).size > 20
    for sample, wanted in zip(samples, theirs, strict=True):
        np.testing.assert_array_equal(run(graph, [sample])[0], wanted)
