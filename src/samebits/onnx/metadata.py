"""Metadata of ONNX files that this project writes and reads: numbers that ONNX has no field for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onnx import ModelProto

from samebits.contract import UNKNOWN, Contract
from samebits.errors import InputError

CLASSICAL = "ai.onnx.ml"  # the domain of classical models
RATE = "samebits.rate"  # samples per second of the recordings that a model is made for
FIDELITY = "samebits.fidelity"  # what quantization kept of the float network, as JSON
CONTRACT = "samebits.contract"  # the meaning of inputs and outputs, as JSON
STATES = "samebits.states"  # number of the last inputs, and of the last outputs, that are states


@dataclass(frozen=True)
class FileFacts:
    """The metadata of a model, beside its graph.

    rate:     samples per second of the recordings that it is made for
    fidelity: a verdict as text, not checked
    contract: what its inputs and outputs mean
    """

    rate: int | None = None
    fidelity: str = ""
    contract: Contract = UNKNOWN

    def properties(self) -> dict[str, str]:
        """As properties of a file."""
        rate = {} if self.rate is None else {RATE: str(self.rate)}
        texts = {FIDELITY: self.fidelity, CONTRACT: self.contract.to_json()}
        return {**rate, **{key: text for key, text in texts.items() if text}}


def read_facts(model: ModelProto) -> FileFacts:
    """The facts in an untrusted model's metadata. InputError for a rate that is no number, and for
    a contract that is none."""
    texts = {entry.key: entry.value for entry in reversed(model.metadata_props)}
    rate = read_number(model, RATE, "samples per second", least=1)
    return FileFacts(rate, texts.get(FIDELITY, ""), Contract.from_json(texts.get(CONTRACT, "")))


def read_number(
    model: ModelProto, key: str, what: str, least: int = 0, most: int = 9_999_999
) -> int | None:
    """The number under a key of an untrusted model's metadata, None where the key is missing.

    what: its meaning, for the message of InputError where the text is no number from `least` to
    `most` (decimal digits without leading zeros).
    """
    found = [entry.value for entry in model.metadata_props if entry.key == key]
    if not found:
        return None
    number = int(found[0]) if re.fullmatch("0|[1-9][0-9]{0,6}", found[0]) else -1
    if not least <= number <= most:
        raise InputError(
            f"expected a number of {what} in the metadata, found {found[0][:20]!a}; "
            "export the model again"
        )
    return number
