"""Files that nobody vouches for: every flaw is one sentence, found before memory is spent on it."""

from __future__ import annotations

import random
import re
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from samebits import ledger
from samebits.errors import InputError, SamebitsError, UnsupportedError
from samebits.tflite import parse, to_bytes
from samebits.tflite.file import File, LiteOperator, Scaling, Subgraph, Tensor
from samebits.tflite.schema import OPERATORS, OPTIONS, OPTIONS_OF, TABLES, TYPES
from tflite_files import Net, image_net, options_of

SENTENCE = re.compile(r"f\.tflite: (.*: )?expected [^\n]+, found [^\n]+; [^\n]+")


def small() -> Net:
    net = Net(1)
    net.dense(net.input(1, 3), 2, activation="RELU")
    return net


def refused(data: bytes, kind: type[SamebitsError] = InputError) -> str:
    with pytest.raises(kind) as caught:
        parse(data, "f.tflite")
    message = str(caught.value)
    assert SENTENCE.fullmatch(message), message
    return message


def read(data: bytes) -> File | None:
    """What is read; None where it is refused, in one sentence."""
    message = ""
    try:
        return parse(data, "f.tflite")
    except (InputError, UnsupportedError) as error:
        message = str(error)
    assert SENTENCE.fullmatch(message), message
    return None


def same(a: File, b: File) -> None:
    """Equal data, arrays by their types and bytes."""
    assert a.description == b.description
    for p, q in zip(a.subgraphs, b.subgraphs, strict=True):
        assert (p.name, p.inputs, p.outputs) == (q.name, q.inputs, q.outputs)
        assert p.operators == q.operators
        for s, t in zip(p.tensors, q.tensors, strict=True):
            for name in ("name", "dtype", "shape", "quantization", "variable"):
                assert getattr(s, name) == getattr(t, name), name
            assert (s.array is None) == (t.array is None)
            if s.array is not None and t.array is not None:
                np.testing.assert_array_equal(s.array, t.array)
                assert s.array.dtype == t.array.dtype


# --- round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float32"])
def test_what_is_written_is_read(dtype):
    net, y = image_net(3, dtype)
    data = net.bytes(y)
    found = parse(data, "f.tflite")
    same(found, net.file(y))
    assert to_bytes(found) == data == net.bytes(y)


def test_every_operator_and_its_options():
    """Custom ones, versions, and options with every value other than its default."""
    net = Net()
    x = net.input(2)
    for op in [*OPERATORS.values(), "operator 500"]:
        given = {
            name: {"?": True, "f": 0.5, "s": "x"}.get(field.kind, 3)
            for name, field in OPTIONS[OPTIONS_OF[op]][1].items()
        } if op in OPTIONS_OF else {}  # fmt: skip
        name = "CUSTOM of mine" if op == "CUSTOM" else op
        net.operators.append(LiteOperator(name, (x, -1), (x,), given, 7))
    same(parse(net.bytes(x), "f.tflite"), net.file(x))


@pytest.mark.parametrize("dtype", [t for t in TYPES.values() if t not in ("string", "variant")])
def test_every_type(dtype):
    """Arrays of numbers, codes of 4 bits in an odd count too; other tensors without arrays."""
    numbers = None
    if dtype == "int4":
        numbers = np.array([-8, 7, -1, 0, 3], np.int8)
    elif not dtype.startswith(("complex", "resource")):
        numbers = np.array([0, 1, 1, 0, 1]).astype(dtype)
    tensor = Tensor("é", dtype, (5,), numbers, None, numbers is None)
    file = File((Subgraph((tensor,), (), (), (0,)), Subgraph((), (), (), ())))
    same(parse(to_bytes(file), "f.tflite"), file)


def test_scales_of_channels_and_an_empty_array():
    found = Scaling((0.5, 0.25), (1, -1), 1)
    tensors = (
        Tensor("a", "int8", (3, 2), np.zeros((3, 2), np.int8), found),
        Tensor("b", "int32", (0,), np.zeros(0, np.int32)),
        Tensor("", "float32", ()),
    )
    file = File((Subgraph(tensors, (), (2,), (2,)),))
    same(parse(to_bytes(file), "f.tflite"), file)


def test_equal_arrays_are_stored_once():
    array = np.arange(64, dtype=np.float32)
    one, two = (
        File((Subgraph((Tensor("a", "float32", (64,), array),) * n, (), (), (0,)),)) for n in (1, 2)
    )
    assert len(to_bytes(two)) < len(to_bytes(one)) + 128


def test_a_buffer_behind_the_tables():
    """Files above 2 GiB keep their data at an offset of the file."""
    data = bytearray(small().bytes(3))
    numbers = np.array([[1, 2, 3], [4, 5, 6]], np.int8)
    at = data.index(small().tensors[1].array.tobytes())  # the vector's count lies before it
    assert struct.unpack_from("<I", data, at - 4) == (6,)
    writer = bytes(data)
    table = {name: field.number for name, field in TABLES["Buffer"].items()}
    assert table == {"data": 0, "offset": 1, "size": 2}
    from samebits.tflite import writer as module

    made = module._Writer()
    model = {
        "version": 3,
        "subgraphs": [{"tensors": [{"shape": (2, 3), "type": 9, "buffer": 1, "name": "w"}]}],
        "buffers": [{}, {"offset": 8, "size": 6}],
    }
    root = made.table(TABLES["Model"], model)
    struct.pack_into("<I4s", made.out, 0, root, b"TFL3")
    start = len(made.out)
    found = bytes(made.out)
    found = found.replace(struct.pack("<Q", 8), struct.pack("<Q", start), 1) + numbers.tobytes()
    tensor = parse(found, "f.tflite").subgraphs[0].tensors[0]
    np.testing.assert_array_equal(tensor.array, numbers)
    assert "a buffer of 6 bytes at byte" in refused(found[:-1])
    assert writer == small().bytes(3)


# --- damaged files --------------------------------------------------------------------------------


def test_cut_at_every_byte():
    """All of it is needed but what aligns its end."""
    data = small().bytes(3)
    whole = parse(data, "f.tflite")
    for end in range(len(data)):
        found = read(data[:end])
        if found is not None:
            same(found, whole)
            assert end >= len(data) - 1


@pytest.mark.parametrize("number", [0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF])
def test_any_number_in_place_of_any(number):
    """Distances into loops, before the file and behind it; counts of billions."""
    data = small().bytes(3)
    for at in range(0, len(data) - 4, 2):
        changed = bytearray(data)
        struct.pack_into("<I", changed, at, number)
        read(bytes(changed))


def test_random_damage():
    rng = random.Random(1)
    data = image_net()[0].bytes(17)
    ends = {"read": 0, "refused": 0}
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 2, 8))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        ends["refused" if read(bytes(changed)) is None else "read"] += 1
    assert min(ends.values()) > 100


def test_no_file_of_the_format():
    assert "found 3 bytes" in refused(b"abc")
    assert "found 'ABCD'" in refused(b"\0\0\0\0ABCD\0\0\0\0")
    assert "found 0 bytes" in refused(b"")
    data = small().bytes(3)
    at = data.index(struct.pack("<I", 3), 8)
    changed = bytearray(data)
    changed[at] = 2
    with pytest.raises(InputError):
        parse(bytes(changed), "f.tflite")


def with_tensor(**changes) -> bytes:
    net = small()
    net.tensors[1] = replace(net.tensors[1], **changes)
    return net.bytes(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (2, 2)}, "subgraph 0, tensor 1: expected 4 bytes for int8 [2, 2], found a "
         "buffer of 6; copy the file whole or convert the model again"),
        ({"shape": (2**28, 2)}, "expected a shape of at most 268435456 elements, found"),
        ({"shape": (0, 2**29)}, "expected a shape of at most 268435456 elements, found"),
        ({"shape": (0, 2**20, 2**20)}, "expected a shape of at most 268435456 elements, found"),
        ({"shape": (-1, 3)}, "expected a shape of at most 268435456 elements, found [-1, 3]"),
        ({"shape": (1,) * 33}, "expected at most 32 dimensions, found 33"),
        ({"name": "n" * 70000}, "expected a text of at most 65536 bytes, found one of 70000"),
        ({"quantization": Scaling((0.5, 0.5, 0.5))}, "expected 1 scale, or 2 along axis 0, "
         "found 3"),
        ({"quantization": Scaling((0.5, 0.5), (1, 2, 3))}, "expected 1 zero point, or 2, "
         "found 3"),
        ({"quantization": Scaling((0.0,))}, "expected positive finite scales, found others"),
        ({"quantization": Scaling((float("nan"),))}, "expected positive finite scales"),
        ({"quantization": Scaling((0.5, 0.5), (0,), 9)}, "expected 1 scale, or 1 along axis "
         "9, found 2"),
    ],
)  # fmt: skip
def test_tensors_that_contradict_themselves(changes, message):
    assert message in refused(with_tensor(**changes))


def test_numbers_of_tensors():
    net = small()
    net.operators = [replace(net.operators[0], inputs=(0, 1, 9))]
    assert "operator 0: expected numbers of tensors below 4 as inputs, found 9" in refused(
        net.bytes(3)
    )
    assert "subgraph 0: expected numbers of tensors below 4 as outputs, found 4" in refused(
        small().bytes(4)
    )
    net.operators = [replace(small().operators[0], outputs=(-1,))]
    assert "as outputs, found -1" in refused(net.bytes(3))
    net.operators = [replace(net.operators[0], inputs=(0,) * 5000)]
    assert "operator 0: expected at most 4096 inputs, found 5000" in refused(net.bytes(3))


def test_options_of_another_operator():
    data = bytearray(small().bytes(3))
    net = small()
    net.operators = [replace(net.operators[0], op="ADD", options=options_of("ADD", {}))]
    other = bytearray(net.bytes(3))
    assert len(data) == len(other)
    (at,) = [i for i, (a, b) in enumerate(zip(data, other, strict=True)) if (a, b) == (8, 11)]
    data[at] = 11
    assert "operator 0: expected the options 8 of FULLY_CONNECTED, found 11" in refused(bytes(data))


def test_what_is_stored_in_other_ways():
    """Sparse tensors, other quantizations and types are sound, and not read."""
    from samebits.tflite import writer as module

    def made(**more) -> bytes:
        writer = module._Writer()
        tensor = {"shape": (1,), "type": 9, "buffer": 0, "name": "w", **more}
        model = {"version": 3, "subgraphs": [{"tensors": [tensor]}], "buffers": [{}]}
        root = writer.table(TABLES["Model"], model)
        struct.pack_into("<I4s", writer.out, 0, root, b"TFL3")
        return bytes(writer.out)

    assert "found the sparse tensor 'w'" in refused(made(sparsity={}), UnsupportedError)
    assert "found type 99 of 'w'" in refused(made(type=99), UnsupportedError)
    other = {"details_type": 1, "scale": (0.5,)}
    assert "found another quantization of 'w'" in refused(
        made(quantization=other), UnsupportedError
    )
    assert "expected a buffer below 1, found 2" in refused(made(buffer=2))


def test_many_distances_to_one_table_cost_memory():
    """A small file that asks for much: what is read is charged, not what is stored."""
    net = small()
    net.tensors += [Tensor("t", "int8", (1,))] * 2000
    data = bytearray(net.bytes(3))
    first = parse(bytes(data), "f.tflite")
    assert len(first.subgraphs[0].tensors) == 2004
    with ledger.memory_limit("1M"), ledger.load(), pytest.raises(InputError) as caught:
        parse(bytes(data), "f.tflite")
    assert "f.tflite: expected at most 1048576 bytes in memory" in str(caught.value)


def test_a_vector_of_billions_takes_no_memory():
    data = bytearray(small().bytes(3))
    at = data.index(small().tensors[1].array.tobytes()) - 4
    struct.pack_into("<I", data, at, 0xFFFFFFFF)
    tracemalloc.start()
    message = refused(bytes(data))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "a vector of 4294967295 x 1 bytes" in message
    assert peak < 1 << 20


def test_tables_nest_without_end_nowhere():
    """The kinds of tables lead to one another in no circle."""

    def depth(name: str, above: tuple[str, ...]) -> int:
        assert name not in above
        inner = [f.kind.partition("T:")[2] for f in TABLES[name].values() if "T:" in f.kind]
        return 1 + max((depth(kind, (*above, name)) for kind in inner), default=0)

    assert depth("Model", ()) == 4
