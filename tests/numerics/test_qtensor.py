"""QTensor: what it accepts, how it reads."""

from __future__ import annotations

import pytest
import torch

from samebits.numerics import FORMATS, QTensor, quantize_real

BFP8, MXINT8 = FORMATS["bfp8"], FORMATS["mxint8"]
U8, S8 = FORMATS["asymmetric-u8"], FORMATS["symmetric-s8"]
CODES = torch.tensor([[1, -2, 3]], dtype=torch.int8)
E = torch.tensor(-3)
SCALE = torch.tensor(0.5, dtype=torch.float64)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: QTensor(CODES.to(torch.float32), BFP8, E), "integer codes, found torch.float32"),
        (lambda: QTensor(CODES - 126, BFP8, E), "codes in [-127, 127], found [-128, -123]"),
        (lambda: QTensor(CODES, BFP8), "an exponent and no scale, found neither"),
        (
            lambda: QTensor(CODES, BFP8, E, SCALE),
            "an exponent and no scale, found exponent and scale",
        ),
        (lambda: QTensor(CODES, BFP8, E + 131), "exponents in [-128, 127], found 128"),
        (
            lambda: QTensor(CODES, BFP8, E.to(torch.int32)),
            "exponent of type torch.int64, shape () on cpu, found torch.int32, () on cpu",
        ),
        (
            lambda: QTensor(CODES, MXINT8, E),
            "exponent of type torch.int64, shape (1, 1) on cpu, found torch.int64, () on cpu",
        ),
        (lambda: QTensor(CODES, FORMATS["q0.7"], E), "exponents in [-7, -7], found -3"),
        (lambda: QTensor(CODES, S8, E), "a scale and no exponent, found exponent"),
        (
            lambda: QTensor(CODES, S8, scale=SCALE.to(torch.float32)),
            "scale of type torch.float64, shape () on cpu, found torch.float32, () on cpu",
        ),
        (
            lambda: QTensor(CODES, S8, scale=SCALE.reshape(1)),
            "scale of type torch.float64, shape () on cpu, found torch.float64, (1,) on cpu",
        ),
        (lambda: QTensor(CODES, S8, scale=-SCALE), "positive finite scales, found -0.5"),
        (lambda: QTensor(CODES, S8, scale=SCALE, zero_point=1), "a zero point in [0, 0], found 1"),
        (
            lambda: QTensor(CODES.abs(), U8, scale=SCALE, zero_point=256),
            "a zero point in [0, 255], found 256",
        ),
    ],
)
def test_parts_that_do_not_belong_together(build, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        build()
    _, _, found = str(error.value).partition(": expected ")
    assert found == message
    assert str(error.value).startswith("QTensor of format '")


def test_dequantize():
    assert QTensor(CODES, BFP8, E).dequantize().tolist() == [[0.125, -0.25, 0.375]]
    found = QTensor(CODES.abs(), U8, scale=SCALE, zero_point=2).dequantize()
    assert found.dtype == torch.float64
    assert found.tolist() == [[-0.5, 0.0, 0.5]]
    blocks = torch.arange(1, 41, dtype=torch.int8)
    exponent = torch.tensor([0, -133])
    values = QTensor(blocks, MXINT8, exponent).dequantize().tolist()
    assert values == [k if k <= 32 else k * 2.0**-133 for k in range(1, 41)]


def test_repr():
    assert repr(QTensor(CODES, BFP8, E)) == (
        "QTensor(bfp8, shape (1, 3), codes [1, -2, 3], exponent -3)"
    )
    assert repr(quantize_real(torch.arange(100.0), U8)) == (
        "QTensor(asymmetric-u8, shape (100,), codes [0, 3, 5, 8, 10, 13, 15, 18, ... 100 in all], "
        "scale 0.38823530077934265, zero_point 0)"
    )
    assert repr(quantize_real(torch.tensor(1.0), MXINT8)) == (
        "QTensor(mxint8, shape (), codes 64, exponent [-6])"
    )


def test_it_is_frozen():
    with pytest.raises(AttributeError):
        QTensor(CODES, BFP8, E).codes = CODES  # type: ignore[misc]
