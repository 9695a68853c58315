"""A quantized network as its file says it: what `quantize` gives, and all that reads it takes."""

from __future__ import annotations

from dataclasses import replace

from samebits.codegen.lowering.lower import lower_to_calls
from samebits.model import Model
from samebits.onnx import from_model, to_qdq


def deployable(model: Model) -> Model:
    """The model read back from the ONNX that it is saved as, lowered to integers and to C.

    `verify` and `compile` begin with the same two steps, so they take the file. Raises
    UnsupportedError with their words where they would refuse it, or where ONNX cannot say it.
    """
    written = to_qdq(model.real, "float")
    graph = from_model(written, source=model.source)
    found = replace(model, graph=graph, firmware=None, deployed=None, package=None)
    lower_to_calls(found.integer, draft=True)
    return found
