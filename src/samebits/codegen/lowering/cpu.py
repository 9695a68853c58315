"""Processors that C is made for: which layout of weights their fast kernels read.

A package for one processor compiles on every other and gives the same codes there: all layouts have
a kernel in plain C, and only speed depends on where it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from samebits.errors import InputError


@dataclass(frozen=True)
class Packing:
    """How the packed kernels (lowering/packed.py) read weights and end their sums.

    name:      of the layout; in C SAMEBITS_LAYOUT_<name>
    lanes:     output channels of a block
    step:      codes of one channel that lie together
    paired:    weights of two channels share halfwords
    upper:     a sum times its multiplier is divided by 2**upper, rounded down, before it is rounded
               (VQDMULH of Helium: 31; SMMUL, SMMLA and the upper word of SMULL: 32)
    tile:      output pixels that share the loads of weights
    wide:      bytes of scratch memory that a code of a tile takes when it is widened
    depthwise: channels of a block of the depthwise kernel
    less:      of a doubled rounding (lowering/doubled.py), what the stream's shifts lack
    step16: codes of one channel that lie together where codes have 16 bits; 0: no such kernels
    """

    name: str
    lanes: int
    step: int
    paired: bool
    upper: int
    tile: int
    wide: int
    depthwise: int
    less: int
    step16: int = 0


HELIUM = Packing(
    name="HELIUM",
    lanes=4,
    step=16,
    paired=False,
    upper=31,
    tile=2,
    wide=0,
    depthwise=16,
    less=0,
    step16=8,
)
DSP = Packing(
    name="DSP",
    lanes=2,
    step=4,
    paired=True,
    upper=32,
    tile=3,
    wide=2,
    depthwise=4,
    less=1,
    step16=1,
)
PLAIN = Packing(
    name="PLAIN",
    lanes=4,
    step=4,
    paired=False,
    upper=32,
    tile=2,
    wide=0,
    depthwise=4,
    less=1,
)


@dataclass(frozen=True)
class Cpu:
    """A processor by its name.

    packing: None for the kernels of any processor. small: memory counts more than speed, so that
    convolutions go in place where that lowers the peak (codegen/rolling.py).
    """

    name: str
    packing: Packing | None = None
    small: bool = False

    @property
    def quick_words(self) -> bool:
        """Multipliers of two words take the fewest instructions: vectors, or SMMUL and SMLAL."""
        return self.packing is not None and self.packing.step16 > 0

    @property
    def defines(self) -> str:
        """Text before the kernels: the one layout of the package's weights, for which those
        of the processor leave the definition in plain C out."""
        return f"#define SAMEBITS_LAYOUT_{self.packing.name}\n" if self.packing else ""


PORTABLE = Cpu("portable")
CPUS = {
    cpu.name: cpu
    for cpu in (
        PORTABLE,
        *(Cpu(f"cortex-{name}", None, small=True) for name in ("m0", "m0plus")),
        Cpu("cortex-m3", PLAIN, small=True),
        *(Cpu(f"cortex-{name}", DSP, small=True) for name in ("m4", "m7", "m33")),
        *(Cpu(f"cortex-{name}", HELIUM, small=True) for name in ("m52", "m55", "m85")),
    )
}


def find_cpu(name: str) -> Cpu:
    """The processor of a name; InputError, which lists the known ones, for another."""
    if name not in CPUS:
        raise InputError(f"expected a processor of {', '.join(CPUS)}, found {name!r}")
    return CPUS[name]
