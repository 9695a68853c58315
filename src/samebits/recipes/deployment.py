"""Recipes of what is generated of a network."""

from __future__ import annotations

from samebits.recipes.record import Recipe, option

PROJECTS = ("make", "cmake", "arduino", "zephyr", "espidf", "platformio")
CPUS = (
    "portable",
    *(f"cortex-m{n}" for n in ("0", "0plus", "3", "4", "7", "33", "52", "55", "85")),
)


class Packaging(Recipe):
    """The folder of C that a network is compiled to."""

    package: str = option(
        default="make",
        help="The folder as make, cmake, arduino, zephyr, espidf or platformio has it.",
        choices=PROJECTS,
        metavar="SYSTEM",
    )
    prefix: str = option(
        default="model",
        help="Prefix of every name in C: two networks in one program take two.",
        metavar="NAME",
    )
    weights_file: bool = option(
        default=False,
        help="Weights as a file of their own, PREFIX.weights: the code takes that of another "
        "training of the network too.",
    )
    cpu: str | None = option(
        default=None,
        help="Processor whose kernels are taken, such as cortex-m4; the bits are the same "
        "[default: any, of ship the board's].",
        choices=CPUS,
        metavar="NAME",
    )


class Accelerator(Recipe):
    """Firmware of the neural processor, which takes float networks."""

    native_dim: int = option(default=16, help="npu: native dimension.", span="[8, 512]")
    mantissa: int = option(default=15, help="npu: bits beside the sign.", span="[2, 15]")
    requantize: bool = option(default=False, help="npu: partial products go through binary16.")
    steps: int | None = option(
        default=None,
        help="npu: length of a recurrent network's sequences, if not its own.",
        span="[1, inf)",
    )
