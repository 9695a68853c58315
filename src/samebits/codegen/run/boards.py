"""Bare-metal boards, as data, and the text that ties a program to one.

The C files and the linker script of csrc/boards hold start-up, semihosting and the harness.
A program takes the file `input.bin` of the folder that the emulator runs in, sample by sample, and
writes `output.bin` and the files that the head of `main.c` describes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from samebits import csrc

FOLDER = csrc.FOLDER / "boards"
SOURCES = ("startup.c", "memory.c", "main.c")
LINKER_SCRIPT = "sections.ld"

# Exit codes of the harness (boards/harness.h); the emulator ends with them.
EXIT_CODES = {
    3: "could not open its input or output file",
    4: "met the end of the input inside a sample",
    5: "could not write its output",
    6: "overflowed its stack",
    7: "hit a processor fault",
}
STACK_OVERFLOW = 6


@dataclass(frozen=True)
class Region:
    """A range of addresses."""

    origin: int
    bytes: int


@dataclass(frozen=True)
class Board:
    """A board of the system emulator.

    machine:      the emulator's name of it
    flash, ram:   where constants and code, and data and stack, lie
    vectors:      where the processor reads the vector table, if not at the start of the flash
    stack:        bytes kept for the stack; it lies lowest in RAM, so an overflow leaves the RAM
    timer:        the driver of timer.h that reads virtual time
    timer_hz:     ticks of that timer per second
    icount_shift: the emulator's virtual clock advances 2**icount_shift ns per instruction: so much
                  that an instruction is more than two ticks, and counts are exact.
    """

    machine: str
    flash: Region
    ram: Region
    stack: int
    timer: str
    timer_hz: int
    icount_shift: int
    vectors: Region | None = None

    @property
    def defines(self) -> tuple[str, ...]:
        """Compiler flags that tell the C files which timer the board has."""
        return (f"-DSAMEBITS_TIMER_{self.timer}",)


KIB = 1024
MIB = 1024 * KIB

# nRF51822 (Cortex-M0): 256 KiB of flash, 16 KiB of RAM; TIMER0 runs at 16 MHz.
MICROBIT = Board(
    machine="microbit",
    flash=Region(0x00000000, 256 * KIB),
    ram=Region(0x20000000, 16 * KIB),
    stack=2 * KIB,
    timer="NRF51",
    timer_hz=16_000_000,
    icount_shift=8,
)

# Arm MPS2 FPGA board with a Cortex-M3: two blocks of 4 MiB; CMSDK timer 0 runs at 25 MHz.
MPS2_AN385 = Board(
    machine="mps2-an385",
    flash=Region(0x00000000, 4 * MIB),
    ram=Region(0x20000000, 4 * MIB),
    stack=16 * KIB,
    timer="CMSDK",
    timer_hz=25_000_000,
    icount_shift=7,
)

# The same board with a Cortex-M4 and, with the memory elsewhere, a Cortex-M7.
MPS2_AN386 = dataclasses.replace(MPS2_AN385, machine="mps2-an386")
MPS2_AN500 = dataclasses.replace(MPS2_AN385, machine="mps2-an500")

# Arm MPS2 FPGA board with a Cortex-M33 (IoT Kit), which starts in secure state: the secure aliases
# of the blocks of 4 MiB and 16 MiB; CMSDK timer 0 at its secure address, 20 MHz.
MPS2_AN505 = Board(
    machine="mps2-an505",
    flash=Region(0x10000000, 4 * MIB),
    ram=Region(0x38000000, 4 * MIB),
    stack=16 * KIB,
    timer="IOTKIT",
    timer_hz=20_000_000,
    icount_shift=7,
)

# Arm MPS3 FPGA board with a Cortex-M55 (SSE-300), which starts in secure state: these are the
# secure aliases of ITCM (vectors), FPGA SRAM and internal SRAM; the system counter runs at 32 MHz.
MPS3_AN547 = Board(
    machine="mps3-an547",
    vectors=Region(0x10000000, 512 * KIB),
    flash=Region(0x11000000, 2 * MIB),
    ram=Region(0x31000000, 4 * MIB),
    stack=16 * KIB,
    timer="SSE",
    timer_hz=32_000_000,
    icount_shift=7,
)


def linker_script(board: Board) -> str:
    """The script that links a program for the board: its memory and the common sections."""
    vectors = board.vectors or Region(board.flash.origin, 0)
    home = "VECTORS" if board.vectors else "FLASH"
    return (
        "MEMORY\n{\n"
        f"  VECTORS (rx) : ORIGIN = {vectors.origin:#x}, LENGTH = {vectors.bytes}\n"
        f"  FLASH (rx) : ORIGIN = {board.flash.origin:#x}, LENGTH = {board.flash.bytes}\n"
        f"  RAM (rwx) : ORIGIN = {board.ram.origin:#x}, LENGTH = {board.ram.bytes}\n"
        "}\n"
        f'REGION_ALIAS("VECTOR_HOME", {home})\n'
        f"__stack_size = {board.stack};\n"
        f"INCLUDE {LINKER_SCRIPT}\n"
    )
