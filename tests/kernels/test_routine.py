"""Routines: the kernel calls of a computation, run again on other numbers by one call."""

from __future__ import annotations

import ctypes

import pytest
import torch

from samebits import kernels
from samebits.kernels import conv_shape
from samebits.kernels.routine import NotRecordableError, RoutineNumber

Place = ctypes.c_int64.from_address


@pytest.fixture
def recorder():
    if kernels.realisation() != "native":
        pytest.skip("no native kernels")
    return kernels.recorder()


def draw(seed: int, *shape: int, kind=torch.int8, most: int = 127) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=random).to(kind)


def test_a_routine_runs_again_on_other_codes_and_exponents(recorder):
    """Products, a bias, one rounding: what eager says for each of twenty operands."""
    shape = conv_shape((2, 3, 5, 4), (4, 3, 3, 3), (1, 1), (1, 1))
    x, w = draw(0, 2, 3, 5, 4), draw(1, 4, 3, 3, 3)
    b, a = draw(2, 4), draw(3, 4, kind=torch.int16, most=1 << 14)
    e_x, e_w = recorder.input_cell(-3), recorder.input_cell(-7)

    def computed(x, e_x, e_w):
        k = kernels.of(x)
        acc, largest = k.conv(x, w, shape)
        acc, largest, exponent = k.with_bias(acc, largest, e_x + e_w, (b, a, e_w - 15))
        return k.requantize(acc, largest, exponent, 8)

    recorder.made(x)
    with kernels.recording(recorder, "all"):
        y, e_y = computed(x, e_x, e_w)
    assert isinstance(e_y, RoutineNumber)
    routine = recorder.finish(x, y)
    own_x, own_y = routine.tensor(x), routine.tensor(y)
    for seed in range(20):
        z = draw(seed, 2, 3, 5, 4) * (seed != 5)
        own_x.copy_(z)
        Place(e_x.place).value, Place(e_w.place).value = seed - 10, 3 - 2 * seed
        assert routine.run("all")
        with kernels.use("eager"):
            codes, exponent = computed(z, seed - 10, 3 - 2 * seed)
        assert torch.equal(own_y, codes)
        assert Place(e_y.place).value == exponent


def test_parts_are_resolved_in_a_routine(recorder):
    """Zeros do not count, whatever their exponent; the sum of three and of two."""
    parts = [draw(i, 40, kind=torch.int32, most=2139062143) for i in range(3)]
    parts[1] = (parts[1] >> 16).to(torch.int16)
    cells = [recorder.input_cell(0) for _ in parts]
    for part in parts:
        recorder.made(part)
    with kernels.recording(recorder, "all"):
        k = kernels.of(parts[0])
        three, two = (k.resolve(list(zip(parts[:n], cells[:n], strict=True))) for n in (3, 2))
    routine = recorder.finish(*parts, three[0], two[0])
    own = [routine.tensor(part) for part in parts]
    for zeros in range(8):
        for exponents in ((0, 0, 0), (5, -3, 1), (-40, 0, 60), (100, 90, -100)):
            for index, part in enumerate(own):
                part.copy_(parts[index] * (not zeros >> index & 1))
                Place(cells[index].place).value = exponents[index]
            assert routine.run("all")
            with kernels.use("eager"):
                k = kernels.of(parts[0])
                for n, (found, exponent) in ((3, three), (2, two)):
                    codes, e = k.resolve(list(zip(own[:n], exponents[:n], strict=True)))
                    assert torch.equal(routine.tensor(found), codes)
                    assert Place(exponent.place).value == e


def test_copies_and_views_of_torch_are_part_of_it(recorder):
    x = recorder.made(draw(0, 2, 3, 4, 5))
    with kernels.recording(recorder, "all"):
        turned = x.permute(3, 0, 2, 1).contiguous().to(torch.int32)
        wide = torch.zeros(5, 2, dtype=torch.int64)
        wide[:, :1].copy_(turned[:, :1, 0, 0])
    routine = recorder.finish(x, turned, wide)
    z = draw(1, 2, 3, 4, 5)
    routine.tensor(x).copy_(z)
    routine.tensor(wide).fill_(9)
    assert routine.run("all")
    expected = z.permute(3, 0, 2, 1).int()
    assert torch.equal(routine.tensor(turned), expected)
    assert torch.equal(routine.tensor(wide)[:, 0], expected[:, 0, 0, 0].long())
    assert not routine.tensor(wide)[:, 1].any()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_choices_of_torch_are_part_of_it(recorder, axis, order):
    """Elements along an axis, some several times, and the sums of what comes back to them."""
    x = recorder.made(draw(0, 3, 4, 5).permute(order))
    index = recorder.made(torch.zeros(6, dtype=torch.int64))
    places = [slice(None)] * axis
    with kernels.recording(recorder, "all"):
        chosen, same = x.index_select(axis, index), x[(*places, index)]
        sums = torch.zeros(x.shape, dtype=torch.int64)
        sums.index_add_(axis, index, chosen.long())
    routine = recorder.finish(x, index, chosen, same, sums)
    for seed in range(3):
        z, at = draw(seed, *x.shape), draw(seed, 6).long() % x.shape[axis]
        routine.tensor(x).copy_(z)
        routine.tensor(index).copy_(at)
        assert routine.run("all")
        wanted = z.index_select(axis, at)
        assert torch.equal(routine.tensor(chosen), wanted)
        assert torch.equal(routine.tensor(same), wanted)
        expected = torch.zeros(z.shape, dtype=torch.int64).index_add_(axis, at, wanted.long())
        assert torch.equal(routine.tensor(sums), expected)
    for wrong in (-1, x.shape[axis]):
        routine.tensor(index)[2] = wrong
        assert not routine.run("all")


def test_several_indices_and_masks_are_refused(recorder):
    x = recorder.made(draw(0, 3, 4))
    for index in ((torch.tensor([0]), torch.tensor([1])), x > 0):
        with (
            pytest.raises(NotRecordableError, match="several indices, or by a mask"),
            kernels.recording(recorder, "all"),
        ):
            x[index]


def test_masks_are_constants_of_a_routine(recorder):
    """Of places that are allowed, in another order than the codes; a softmax and what is kept."""
    allowed = (draw(3, 6, 4) > -40).t()
    x, cell = recorder.made(draw(0, 4, 6, kind=torch.int32)), recorder.input_cell(-3)
    with kernels.recording(recorder, "all"):
        k = kernels.of(x)
        kept, shares = k.where(allowed, x), k.softmax(x, cell, allowed)
    routine = recorder.finish(x, kept, shares.codes, *shares.narrow)
    for seed in range(5):
        z = draw(seed, 4, 6, kind=torch.int32)
        routine.tensor(x).copy_(z)
        Place(cell.place).value = seed - 6
        assert routine.run("all")
        with kernels.use("eager"):
            k = kernels.of(z)
            wanted = k.softmax(z, seed - 6, allowed)
            assert torch.equal(routine.tensor(kept), k.where(allowed, z))
        for found, expected in zip(
            (shares.codes, *shares.narrow), (wanted.codes, *wanted.narrow), strict=True
        ):
            assert torch.equal(routine.tensor(found), expected)


def test_tensors_share_memory_where_they_may(recorder):
    """A chain needs two of its tensors at a time."""
    x = recorder.made(draw(0, 1 << 12))
    y = x
    with kernels.recording(recorder, "all"):
        for _ in range(6):
            y = kernels.of(y).clamp(y, 0, 0)[0]
    routine = recorder.finish(x, y)
    assert 4 << 12 <= routine.memory.numel() < 5 << 12


def test_what_fails_says_so(recorder):
    """An exponent above 127: the routine ends there, and says that it did."""
    acc, cell = recorder.made(torch.tensor([1 << 20, 3], dtype=torch.int32)), recorder.input_cell(0)
    with kernels.recording(recorder, "all"):
        k = kernels.of(acc)
        k.requantize(acc, k.largest_of(acc), cell, 8)
    routine = recorder.finish(acc)
    routine.tensor(acc).copy_(acc)
    assert routine.run("all")
    Place(cell.place).value = 120
    assert not routine.run("all")


READS = {
    "compares": lambda c: c > 0,
    "is true": bool,
    "as an integer": int,
    "times": lambda c: 2 * c,
    "shifted": lambda c: 1 << c,
    "least": lambda c: min(c, 3),
    "in a text": lambda c: f"{c}",
    "as a key": lambda c: {c: 1},
    "bits": lambda c: c.bit_length(),
    "equal": lambda c: c == 1,
}


@pytest.mark.parametrize("name", READS)
def test_numbers_may_not_be_read(recorder, name):
    with pytest.raises(NotRecordableError, match="is read"):
        READS[name](recorder.input_cell(1))


COMPUTES = {
    "torch": lambda x, e: x + 1,
    "a reading of torch": lambda x, e: x.amax().item(),
    "a kernel without C": lambda x, e: kernels.of(x).divide(x.long(), 3),
    "a kernel that gives numbers": lambda x, e: kernels.of(x).block_sums(
        x.view(torch.uint8), torch.zeros(1024, dtype=torch.int32)
    ),
    "an exponent as a number": lambda x, e: kernels.of(x).scale(x, e),
}


@pytest.mark.parametrize("name", COMPUTES)
def test_what_is_not_a_call_of_c_is_refused(recorder, name):
    x = recorder.made(draw(0, 2, 3))
    with pytest.raises(NotRecordableError), kernels.recording(recorder, "all"):
        COMPUTES[name](x, recorder.input_cell(1))


def test_only_native_kernels_are_recorded():
    with kernels.use("eager"), pytest.raises(NotRecordableError, match="not the native ones"):
        kernels.recorder()
