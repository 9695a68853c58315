"""The neural processor: the example programs, and small networks compiled to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pins.quantization import cnn, lstm
from pins.registry import Array, Pins, digest, route
from pins.samples import fractions
from samebits.ir import Graph
from samebits.model import Firmware, load_firmware
from samebits.npu.compiler.lower import lower
from samebits.npu.machine.assembly import to_text
from samebits.npu.machine.program import Image, Program
from samebits.npu.machine.words import to_words
from samebits.verification.backends.concordant import Concordant
from samebits.verification.backends.npu import Npu
from samebits.verification.inputs import random_codes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "firmware"
SAMPLES = 2


def bits(arrays: list[Array]) -> str:
    """The hash of binary16 numbers, every NaN alike."""
    numbers = [np.where(np.isnan(array), np.float16(np.nan), array) for array in arrays]
    return digest(*(array.astype(np.float16).view(np.uint16) for array in numbers))


def program_pins(program: Program, image: Image) -> Pins:
    """The instructions in words and the initial memory."""
    entries = [
        part
        for memory in sorted(image.entries)
        for address, entry in sorted(image.entries[memory].items())
        for part in (memory, address, np.asarray(entry, np.float16).view(np.uint16))
    ]
    return {"words": digest(to_words(program)), "image": digest(*entries)}


@route("firmware-examples")
def examples() -> Pins:
    found = {}
    for path in sorted(EXAMPLES.glob("*.nnp")):
        firmware = load_firmware(path)
        inputs = random_codes(firmware.interface, SAMPLES)
        pins = program_pins(firmware.program, firmware.image)
        pins["outputs"] = bits(Npu().run(firmware, inputs))
        found |= {f"{path.stem}: {name}": value for name, value in pins.items()}
    return found


@route("firmware-concordant")
def concordant() -> Pins:
    """The examples as PyTorch software."""
    found = {}
    for path in sorted(EXAMPLES.glob("*.nnp")):
        firmware = load_firmware(path)
        inputs = random_codes(firmware.interface, SAMPLES)
        found[path.stem] = bits(Concordant("torch").run(firmware, inputs))
    return found


def compiled(graph: Graph, native: int, mantissa: int, requantize: bool = False) -> Pins:
    program, image = lower(graph, native, mantissa, requantize=requantize)
    firmware = Firmware(graph.name, program, image)
    ports = firmware.interface
    inputs = []
    for i, name in enumerate(ports.inputs):
        shape = (SAMPLES, *ports.values[name].shape[1:])
        inputs.append(fractions(100 + i, shape, 11, -9).astype(np.float16))
    pins = program_pins(program, image)
    return {**pins, "text": digest(to_text(program)), "outputs": bits(Npu().run(firmware, inputs))}


@route("firmware-compiled")
def networks() -> Pins:
    cases = {
        "cnn": compiled(cnn(), 16, 15),
        "cnn, 8 lanes, 5 bits": compiled(cnn(), 8, 5, requantize=True),
        "lstm": compiled(lstm(), 16, 15),
    }
    return {f"{name}: {key}": value for name, pins in cases.items() for key, value in pins.items()}
