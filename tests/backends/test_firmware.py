"""One suite for every backend of firmware: each inherits it and must give the simulator's bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compare import assert_same
from npu.programs import random_case, random_inputs
from samebits.errors import UnsupportedError
from samebits.model import Model, load_firmware
from samebits.verification.backends.concordant import BATCH, Concordant
from samebits.verification.backends.npu import Npu
from samebits.verification.inputs import random_codes

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "firmware").glob("*.nnp"))
QUICK_SEEDS, SLOW_SEEDS = range(50_000, 50_020), range(51_000, 51_200)


def bits(array: np.ndarray) -> np.ndarray:
    """Binary16 as integers, every NaN alike."""
    assert array.dtype == np.float16
    return np.where(np.isnan(array), np.float16(np.nan), array).view(np.uint16)


class FirmwareSuite:
    """What every backend must pass; a subclass names it."""

    backend: Npu | Concordant = Npu()

    @pytest.fixture(autouse=True)
    def _available(self):
        reason = self.backend.unavailable()
        if reason is not None:
            pytest.skip(reason)

    def same(self, firmware: Model, inputs: list[np.ndarray]) -> None:
        expected, found = Npu().run(firmware, inputs), self.backend.run(firmware, inputs)
        names = firmware.interface.outputs
        for name, e, f in zip(names, expected, found, strict=True):
            assert f.shape == e.shape, name
            places = [(name, *index) for index in np.ndindex(e.shape)]
            assert_same(bits(f), bits(e), places)

    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
    def test_example(self, path):
        firmware = load_firmware(path)
        self.same(firmware, random_codes(firmware.interface, 3))

    def test_batches_are_joined_in_order(self):
        firmware = load_firmware(EXAMPLES[0])
        inputs = random_codes(firmware.interface, BATCH + 1)
        (whole,) = self.backend.run(firmware, inputs)
        for index in (0, BATCH):
            (alone,) = self.backend.run(firmware, [a[index : index + 1] for a in inputs])
            assert_same(bits(whole[index]), bits(alone[0]), list(np.ndindex(alone[0].shape)))

    def random(self, seeds: range) -> None:
        for seed in seeds:
            case = random_case(seed)
            firmware = Model(f"random-{seed}", firmware=(case.program, case.image))
            inputs = random_inputs(case, batch=2, seed=seed)
            if inputs:
                self.same(firmware, [inputs[name] for name in firmware.interface.inputs])

    def test_random_programs(self):
        self.random(QUICK_SEEDS)

    @pytest.mark.slow
    def test_more_random_programs(self):
        self.random(SLOW_SEEDS)

    def test_traces_are_those_of_the_simulator(self):
        firmware = load_firmware(EXAMPLES[0])
        inputs = random_codes(firmware.interface, 2)
        try:
            found = self.backend.trace(firmware, inputs)
        except UnsupportedError as error:
            pytest.skip(str(error))
        expected = Npu().trace(firmware, inputs)
        assert len(found) == 2
        assert [[(a.name, a.hash, a.count) for a in run] for run in found] == [
            [(b.name, b.hash, b.count) for b in run] for run in expected
        ]


class TestNpu(FirmwareSuite):
    backend = Npu()


class TestTorch(FirmwareSuite):
    backend = Concordant("torch")


class TestOnnx(FirmwareSuite):
    backend = Concordant("onnx")


@pytest.mark.slow  # TensorFlow is installed by `make test-slow` alone
class TestTensorFlow(FirmwareSuite):
    backend = Concordant("tensorflow")
