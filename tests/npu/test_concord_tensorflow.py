"""Concordant software in TensorFlow: the simulator's bits, where TensorFlow is installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from compare import assert_same
from npu.programs import random_case, random_inputs
from samebits.npu.concord import load_concordant, translate
from samebits.npu.simulate import simulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
    ),
    pytest.mark.filterwarnings("ignore"),  # its import warns
]


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_random_programs(start, tmp_path):
    for seed in range(start, start + 50):
        case = random_case(seed)
        inputs = random_inputs(case, 2, seed)
        translate(case.program, case.image, "tensorflow", tmp_path / "model.py")
        found = load_concordant(tmp_path / "model.py")(inputs)
        for name, array in simulate(case.program, case.image, inputs).outputs.items():
            expected = array if inputs else array[np.newaxis]
            assert found[name].shape == expected.shape
            a, e = (np.where(np.isnan(x), np.float16(np.nan), x) for x in (found[name], expected))
            assert_same(a.view(np.uint16), e.view(np.uint16), np.full(a.size, seed))
