"""The ONNX standard's own cases: what is supported computes what the standard says."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from samebits.errors import UnsupportedError
from samebits.ir import Graph, interpreter
from samebits.ir.real.define import NARROW, array_type
from samebits.ir.real.minifloat import STORAGE, TYPES
from samebits.onnx import from_model

# Cases of onnx 1.23 (1,884 of them): as they are, and with the inputs that shape the graph (axes,
# target shapes, pads, ...) turned into constants, which the suite feeds as inputs.
PASSED_AS_THEY_ARE = 1383
PASSED_WITH_CONSTANTS = 319

# Equality, in rationals where the operator is rational.
EXACT = re.compile(
    r"test_(quantizelinear|dequantizelinear|qlinear|matmulinteger|convinteger"
    r"|dynamicquantizelinear)(?!.*_expanded)"
)
EXACT_PASSED = 38

DIFFERENT = {
    # The case computes the scale and x / scale in binary32, which once lands on a tie; a real graph
    # rounds nothing before QuantizeLinear.
    "test_dynamicquantizelinear_expanded",
    # The cases round every operator of Attention to bfloat16; a real graph rounds its outputs.
    *(
        f"test_attention_{case}_bf16{suffix}"
        for case in (
            *("3d_causal", "4d_causal", "4d_padded_kv", "4d_causal_padded_kv"),
            "4d_attn_mask_causal",
        )
        for suffix in ("", "_expanded")
    ),
}


@dataclass
class Outcome:
    as_is: set[str] = field(default_factory=set)
    with_constants: set[str] = field(default_factory=set)
    wrong: dict[str, str] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    exact: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        passed = len(self.as_is) + len(self.with_constants)
        return passed + len(self.wrong) + sum(self.reasons.values())


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes its expectations while it loads
        from onnx.backend.test.loader import load_model_tests

        cases = load_model_tests(kind="node")
    result = Outcome()
    for case in cases:
        run_case(case, result)
    return result


def run_case(case: Any, result: Outcome) -> None:
    data = [(arrays(given), arrays(wanted)) for given, wanted in case.data_sets]
    names = [value.name for value in case.model.graph.input]
    try:
        graph, bound = imported(case.model, dict(zip(names, data[0][0], strict=False)))
    except UnsupportedError as error:
        result.reasons[reason(str(error))] += 1
        return
    exact = EXACT.match(case.name) is not None
    try:
        for given, wanted in data:
            check(graph, dict(zip(names, given, strict=False)), wanted, case, exact)
    except Exception as error:
        result.wrong[case.name] = f"{type(error).__name__}: {error}"
        return
    (result.with_constants if bound else result.as_is).add(case.name)
    if exact:
        result.exact.add(case.name)


def arrays(values: Any) -> list[Any]:
    tensors = (numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values)
    return [np.asarray(v) if isinstance(v, (np.generic, np.ndarray)) else v for v in tensors]


def imported(model: onnx.ModelProto, given: dict[str, Any]) -> tuple[Graph, bool]:
    """The graph, and whether inputs had to become constants: as few as do, the smallest first."""
    try:
        return from_model(model), False
    except UnsupportedError as error:
        first = error
        if "expected a constant" not in str(error) and "expected constant scales" not in str(error):
            raise
    small = [n for n, a in given.items() if isinstance(a, np.ndarray) and a.ndim <= 1]
    small.sort(key=lambda name: given[name].size)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for name in small:
        changed.graph.initializer.append(numpy_helper.from_array(given[name], name))
        try:
            return from_model(changed), True
        except UnsupportedError:
            continue
    raise first


def check(graph: Graph, given: dict[str, Any], wanted: list[Any], case: Any, exact: bool) -> None:
    feed = [codes(given[name]) for name in graph.inputs]
    # Its own definition is in binary32, and narrow floats have NaN, so neither has a rational form.
    binary = any(node.op == "DynamicQuantizeLinear" for node in graph.nodes)
    rational = exact and not binary and not any(v.dtype in STORAGE for v in graph.values.values())
    results = interpreter.run(graph, feed, exact=rational)
    assert len(results) == len(wanted)
    for name, actual, expected in zip(graph.outputs, results, map(codes, wanted), strict=True):
        if actual.dtype == object:
            actual = actual.astype(np.float64).astype(graph.values[name].dtype)
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        narrow = expected.dtype.name
        if narrow in TYPES:
            actual, expected = (a.astype(np.float64) for a in (actual, expected))
        if exact or narrow in STORAGE:
            np.testing.assert_array_equal(actual, expected)
        else:
            np.testing.assert_allclose(actual, expected, rtol=case.rtol, atol=case.atol)


def codes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Codes of 2 and 4 bits as the interpreter takes them: in 8 bits."""
    return array.astype(array_type(array.dtype.name)) if array.dtype.name in NARROW else array


def reason(message: str) -> str:
    if found := re.search(r"\((\S+)\): there is no such operator here", message):
        return f"operator {found[1]}"
    if re.search(r"input '\S*': expected (a tensor|integers, booleans|one of)", message):
        return "type of an input"
    if re.search(r"Cast(Like)?\): (to: )?expected", message):
        return "type of a cast"
    if "expected an opset" in message:
        return "opset below 6"
    return "attribute or form of an operator"


def test_supported_cases_pass_and_their_number_does_not_fall(
    outcome: Outcome, record_property: Callable[[str, object], None]
) -> None:
    passed = len(outcome.as_is) + len(outcome.with_constants)
    facts = {
        "version": onnx.__version__,
        "total": outcome.total,
        "passed": passed,
        "as-is": len(outcome.as_is),
        "with-constants": len(outcome.with_constants),
        "unsupported": sum(outcome.reasons.values()),
        "different": len(outcome.wrong),
        "reasons": dict(outcome.reasons.most_common()),
    }
    record_property("outcome", json.dumps(facts))
    assert len(outcome.as_is) >= PASSED_AS_THEY_ARE
    assert passed >= PASSED_AS_THEY_ARE + PASSED_WITH_CONSTANTS


def test_no_supported_case_is_wrong(outcome: Outcome) -> None:
    unexpected = {n: text for n, text in outcome.wrong.items() if n not in DIFFERENT}
    assert not unexpected
    assert set(outcome.wrong) == DIFFERENT


def test_quantized_operators_are_exact(outcome: Outcome) -> None:
    assert len(outcome.exact) >= EXACT_PASSED, sorted(outcome.exact)
