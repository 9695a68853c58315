"""Numbers in the metadata of untrusted models."""

from __future__ import annotations

import pytest
from onnx import ModelProto, helper

from samebits.errors import InputError
from samebits.onnx.metadata import RATE, STATES, read_number


def model(**metadata: str) -> ModelProto:
    made = ModelProto()
    helper.set_model_props(made, metadata)
    return made


def test_a_number_that_is_there_and_one_that_is_not() -> None:
    made = model(**{STATES: "2", "other": "text"})
    assert read_number(made, STATES, "states", most=2) == 2
    assert read_number(made, RATE, "samples per second") is None
    assert read_number(model(**{STATES: "0"}), STATES, "states") == 0


@pytest.mark.parametrize("text", ["", "3", "-1", "02", "1.0", "two", "\u0662", "1" * 5000])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a number of states of at most 2 in the meta"):
        read_number(model(**{STATES: text}), STATES, "states of at most 2", most=2)
    with pytest.raises(InputError, match="export the model again"):
        read_number(model(**{RATE: "0"}), RATE, "samples per second", least=1)
