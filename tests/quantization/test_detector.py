"""A voice-activity detector as its package ships it, quantized and streamed through C."""

from __future__ import annotations

import shutil

import numpy as np
import onnxruntime
import pytest

import samebits as sb
from detector import OPTIONS, path, streams
from given_options import called
from samebits.codegen.packaging.package import texts
from samebits.csrc import compiler
from samebits.ir.sequences import StepSequence, run_sequences
from samebits.ir.signal import ratio
from samebits.verification.inputs import dequantize, quantize_samples
from stream_program import Run, stream

COMPILER = shutil.which(compiler()[0])
STREAMS, STEPS = 3, 1000
LARGEST = 340_000  # bytes of constants in C


def floats(file, calls):
    """What onnxruntime computes of the file, call by call: [calls, 1, 1]."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    state, found = np.zeros(OPTIONS["shapes"]["state"], np.float32), []
    for call in calls:
        taken = {"input": call, "state": state, "sr": np.array(OPTIONS["set"]["sr"])}
        output, state = session.run(None, taken)
        found.append(output)
    return np.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "decibels", "changed"), [(8, 20, 0.02), (16, 35, 0.005)])
def test_the_integers_still_detect_voices(bits, decibels, changed, tmp_path):
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    file = path()
    made = called(
        sb.quantize, source=file, calibration={"input": streams(4, 300, 1)}, **OPTIONS, bits=bits
    )
    assert made.fidelity is not None
    assert not made.fidelity.bad

    integer = made.model.integer
    (source,), (output,) = integer.own_inputs, integer.own_outputs
    assert texts(integer)[1].constants <= LARGEST * bits / 8
    unseen = streams(STREAMS, STEPS, 2)
    codes = [quantize_samples(calls, integer.values[source]) for calls in unseen]
    runs = [[Run([calls]) for calls in codes]]
    (taken,) = stream([integer], runs, tmp_path, COMPILER, "-O2", chunks=(0,))
    wanted = run_sequences(integer, [StepSequence([calls]) for calls in codes])
    for calls, (arrays,), own in zip(unseen, taken, wanted, strict=True):
        assert (arrays[0] == own[output]).all()
        found, expected = dequantize(arrays[0], integer.values[output]), floats(file, calls)
        kept = ratio([expected], [found])
        different = float(((found > 0.5) != (expected > 0.5)).mean())
        print(f"{bits} bits: {kept:.1f} dB, {100 * different:.2f} % of the decisions changed")
        assert kept is not None
        assert kept >= decibels
        assert different <= changed
