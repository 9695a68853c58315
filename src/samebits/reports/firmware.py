"""Firmware of the neural processor and its translation as a report section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samebits.reports.deployment import verdict_table, verdict_text
from samebits.reports.html import Links, Paragraph, Section
from samebits.reports.report import section
from samebits.verification.compare import Verdict

TITLE = "Firmware and concordant software"


@dataclass(frozen=True)
class Concordance:
    """A program, simulated and translated into concordant software.

    program:  its file
    native, mantissa: dimension and bits of the processor
    instructions: length of the program
    accuracy: percent on the whole test set, computed by the concordant software
    verdicts: of the software against the simulator, on the simulated samples
    seconds:  time per sample of the simulator and of concordant PyTorch
    page:     the file of the program's own page, beside the one that names it
    """

    program: str
    native: int
    mantissa: int
    instructions: int
    accuracy: float
    verdicts: Sequence[Verdict]
    seconds: tuple[float, float]
    page: str = ""

    @property
    def speedup(self) -> float:
        """The factor by which concordant PyTorch is faster than the simulator."""
        return self.seconds[0] / self.seconds[1]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        verdicts = [v.to_dict() for v in self.verdicts]
        return {**asdict(self), "speedup": self.speedup, "verdicts": verdicts}


def concordance_text(c: Concordance) -> Section:
    """One program in a few lines for a terminal."""
    simulator, software = (1e3 * seconds for seconds in c.seconds)
    return section(
        verdict_text(c.verdicts),
        f"accuracy {c.accuracy:.2f} % of the firmware, {c.program}",
        f"simulator {simulator:.1f} ms an image, concordant PyTorch {software:.3f} ms: "
        f"{c.speedup:,.0f} times faster",
        title=TITLE,
    )


def concordance_section(c: Concordance) -> Section:
    """The card of one program."""
    simulator, software = (1e3 * seconds for seconds in c.seconds)
    return Section(
        TITLE,
        [
            Paragraph(
                f"The trained network compiled to {c.instructions:,} instructions of a neural "
                f"processor (native dimension {c.native}, mantissa {c.mantissa}, binary16), and "
                f"that program translated into PyTorch and ONNX. Test accuracy {c.accuracy:.2f} %."
            ),
            *([Links([("Its chains and memories", c.page)])] if c.page else []),
            verdict_table(
                c.verdicts,
                "against the simulator, which executes the program instruction by instruction",
            ),
            Paragraph(
                f"The simulator takes {simulator:.1f} ms an image, concordant PyTorch "
                f"{software:.3f} ms: {c.speedup:,.0f} times faster, with the same bits."
            ),
        ],
    )
