"""scikit-learn's models as ONNX, by skl2onnx, where both are installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest


def needed() -> None:
    """Skip where scikit-learn or skl2onnx is not installed."""
    for name in ("sklearn", "skl2onnx"):
        pytest.importorskip(name, reason=f"{name} makes the models")


def data(name: str, classes: bool) -> tuple[Any, Any]:
    """The samples [N, F] in binary32, and their classes or, for regressors, numbers."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return x.astype(np.float32), y if classes else np.log1p(x.sum(1))


def exported(model: Any, x: Any) -> onnx.ModelProto:
    """A fitted model as ONNX, its scores as tensors.

    skl2onnx 1.20 puts integers of numpy into the attributes of histogram boosting, which onnx from
    1.19 on refuses; they become Python's here.
    """
    from skl2onnx import to_onnx

    make = onnx.helper.make_attribute

    def plain(key: str, value: Any, *more: Any, **named: Any) -> onnx.AttributeProto:
        if isinstance(value, list) and any(isinstance(v, np.integer) for v in value):
            value = [int(v) for v in value]
        return make(key, value, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx.helper, "make_attribute", plain)
        model_proto: onnx.ModelProto = to_onnx(model, x[:1])
    return model_proto
