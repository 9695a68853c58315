"""The example firmware at native dimensions 8 to 128 and mantissas of 3 to 15 bits, with and
without partial re-quantization: 7 x 4 x 4 x 2 = 224 programs. Concordant software gives the
simulator's bits for all of them. The 28 of `spread` are in `make test`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from compare import assert_same
from npu.firmware_templates import FOLDER, TEMPLATES, firmware
from samebits.model import Model
from samebits.npu.machine.image import read_program
from samebits.npu.simulator.machine import canonical
from samebits.npu.simulator.simulate import simulate
from samebits.verification.backends.concordant import Concordant

NAMES, NATIVES, MANTISSAS, REQUANTIZE = tuple(TEMPLATES), (8, 16, 64, 128), (3, 5, 8, 15), (0, 1)
LARGE = (65504, -65504, 3e4, -6e4)
SMALL = (0, -0.0, 2.0**-24, -3 * 2.0**-24, 1023 * 2.0**-24, 2.0**-14)
ODD = np.array([*LARGE, *SMALL], np.float16)


def spread(name, native, mantissa, requantize):
    """Whether a case is one of 28 that have every pair of two settings (programs are one)."""
    n, at = NAMES.index(name), NATIVES.index(native)
    return mantissa == MANTISSAS[(n + at) % 4] and requantize == (n // 4 + n + at // 2) % 2


CASES = list(product(NAMES, NATIVES, MANTISSAS, REQUANTIZE))
MARKED = [pytest.param(*c, marks=() if spread(*c) else pytest.mark.slow) for c in CASES]


def samples(program):
    """[3, *shape] for the only input: normal numbers; with some of ODD among them; each step or
    pixel of a size of its own, from subnormal to large."""
    (shape,) = (hint.shape for hint in program.hints if hint.kind == "input")
    numbers = np.random.default_rng(list(shape))
    x = numbers.standard_normal((3, *shape))
    x[1] = np.where(numbers.random(shape) < 0.1, numbers.choice(ODD, shape), x[1])
    lead = (shape[0], 1) if len(shape) == 2 else shape[1:]
    x[2] *= np.exp2(numbers.integers(-22, 14, lead))
    return x.astype(np.float16)


def simulated(program, image, x):
    """The only output."""
    (hint,) = (hint for hint in program.hints if hint.kind == "input")
    (output,) = simulate(program, image, {hint.name: x}).outputs.values()
    return output


def check_concordant(kind, program, image, x, expected, folder):
    """The simulator's bits, every NaN alike."""
    (found,) = Concordant(kind, folder).run(Model(program.name, firmware=(program, image)), [x])
    assert found.dtype == expected.dtype == np.float16
    assert found.shape == expected.shape
    f, e = (canonical(array).view(np.uint16) for array in (found, expected))
    where = [f"{program.name} {kind} {index}" for index in np.ndindex(e.shape)]
    assert_same(f, e, where)


# --- the templates ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_templates_are_the_examples(name):
    example, stored = read_program(FOLDER / f"{name}.nnp")
    program, image = firmware(name, 16, 15, 0)

    def plain(lines):
        return [replace(line, line=0) for line in lines]

    assert plain(program.instructions) == plain(example.instructions)
    assert plain(program.hints) == plain(example.hints)
    assert program.depths == example.depths
    assert (program.native, program.mantissa) == (example.native, example.mantissa)
    assert image.entries.keys() == stored.entries.keys()
    for memory, entries in stored.entries.items():
        assert image.entries[memory].keys() == entries.keys()
        for address, entry in entries.items():
            assert image.entries[memory][address].tobytes() == entry.tobytes(), (memory, address)


def test_every_example_has_a_template():
    assert sorted(NAMES) == sorted(path.stem for path in FOLDER.glob("*.nnp"))


@pytest.mark.parametrize("name", NAMES)
def test_every_native_dimension_is_the_same_network(name):
    # Concordance alone would not notice a wrong address in a template.
    outputs = {}
    for native in NATIVES:
        program, image = firmware(name, native, 15, 0)
        outputs[native] = simulated(program, image, samples(program)[0])
    expected = outputs[16].astype(np.float64)
    for native, output in outputs.items():
        assert np.abs(output.astype(np.float64) - expected).max() < 0.01, native
    assert np.abs(expected).max() > 0.1
    # Where each step or pixel is one vector, the blocks are the same: so are the bits.
    assert outputs[64].tobytes() == outputs[128].tobytes()
    if name == "average_pool":  # no blocks at all
        assert len({output.tobytes() for output in outputs.values()}) == 1


def test_settings_matter():
    found = {}
    for mantissa, requantize in product(MANTISSAS, REQUANTIZE):
        program, image = firmware("conv3x3_stride2", 8, mantissa, requantize)
        found[mantissa, requantize] = simulated(program, image, samples(program)[0]).tobytes()
    # A tile's product of 3-bit codes, at most 8 * 7 * 7 units, is a binary16 number already.
    assert found[3, 0] == found[3, 1]
    assert len(set(found.values())) == len(found) - 1


def test_the_spread_has_all_pairs():
    some = [case for case in CASES if spread(*case)]
    assert len(some) == 28
    settings = (NAMES, NATIVES, MANTISSAS, REQUANTIZE)
    for i, j in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        pairs = {(case[i], case[j]) for case in some}
        assert pairs == set(product(settings[i], settings[j])), (i, j)


# --- concordance ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "native", "mantissa", "requantize"), MARKED)
def test_concordance(name, native, mantissa, requantize, tmp_path):
    program, image = firmware(name, native, mantissa, requantize)
    x = samples(program)
    expected = simulated(program, image, x)
    assert np.isfinite(expected[0]).all()
    assert np.count_nonzero(expected[0]) > expected[0].size // 4
    for kind in ("torch", "onnx"):
        check_concordant(kind, program, image, x, expected, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mantissa", MANTISSAS)
@pytest.mark.parametrize("native", NATIVES)
def test_concordance_without_any_requantization(native, mantissa, tmp_path):
    # The only example that re-quantizes by itself, in its first layer.
    program, image = firmware("mlp_softmax", native, mantissa, 0)
    lines = [replace(i, value=0) if i.register == "requantize" else i for i in program.instructions]
    assert lines != list(program.instructions)
    program = replace(program, instructions=tuple(lines))
    x = samples(program)
    expected = simulated(program, image, x)
    for kind in ("torch", "onnx"):
        check_concordant(kind, program, image, x, expected, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TensorFlow's import warns
@pytest.mark.parametrize("native", NATIVES)
@pytest.mark.parametrize("name", NAMES)
def test_concordance_of_tensorflow(name, native, tmp_path):
    missing = Concordant("tensorflow").unavailable()
    if missing:
        pytest.skip(missing)
    for mantissa, requantize in product(MANTISSAS, REQUANTIZE):
        program, image = firmware(name, native, mantissa, requantize)
        x = samples(program)
        check_concordant("tensorflow", program, image, x, simulated(program, image, x), tmp_path)
