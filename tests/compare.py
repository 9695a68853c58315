"""Equality of sequences, with a message that shows where and for what inputs they part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def assert_same(actual: Any, expected: Any, inputs: Any, shown: int = 5) -> None:
    """Every actual[i] == expected[i]; otherwise the number of differences and the first cases.

    The arguments are sequences of one length (torch tensors and arrays are flattened).
    """
    actual, expected, inputs = _sequence(actual), _sequence(expected), _sequence(inputs)
    assert len(actual) == len(expected) == len(inputs), (
        f"lengths differ: {len(actual)} actual, {len(expected)} expected, {len(inputs)} inputs"
    )
    wrong = [i for i in range(len(actual)) if actual[i] != expected[i]]
    if wrong:
        lines = [f"{len(wrong)} of {len(actual)} differ; first {min(shown, len(wrong))}:"]
        lines += [
            f"  [{i}] input {_show(inputs[i])}: got {actual[i]}, expected {expected[i]}"
            for i in wrong[:shown]
        ]
        raise AssertionError("\n".join(lines))


def _sequence(values: Any) -> Sequence[Any]:
    if hasattr(values, "reshape"):
        return values.reshape(-1).tolist()  # type: ignore[no-any-return]
    return values if isinstance(values, Sequence) else list(values)


def _show(value: Any) -> str:
    return f"{value!r} ({value.hex()})" if isinstance(value, float) else repr(value)
