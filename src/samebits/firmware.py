"""Programs of the neural processor from Python: executed, and translated into other software.

`samebits simulate` and `samebits concord` are calls of these functions, and printing.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samebits import progress
from samebits.errors import InputError
from samebits.model import Model, load_firmware
from samebits.network import Network
from samebits.reports.report import Report, Reported, printable, section
from samebits.results import Trace
from samebits.settled import settled

if TYPE_CHECKING:
    from samebits.npu.simulator.simulate import Result

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class SimulatorRun(Reported):
    """The results of a program of the neural processor.

    outputs: binary16, by name
    trace:   the record of every chain, as `samebits audit` reads it; None if it was not asked for
    """

    source: str
    outputs: Mapping[str, Array]
    result: Result
    trace: Mapping[str, Any] | None = None

    def save(self, path: str | Path) -> Path:
        """Write the outputs as an .npz archive, the same bytes whenever it is written."""
        from samebits.files import write_archive

        write_archive(Path(path), self.outputs)
        return Path(path)

    def save_trace(self, path: str | Path) -> Path:
        """Write the trace, for `samebits audit`. Raises InputError where none was asked for."""
        if self.trace is None:
            raise InputError("expected a simulation with trace=True to write its trace, found none")
        return Trace(self.trace).save(path)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data, without the outputs' elements."""
        counts = self.result.counts
        return {
            "program": self.source,
            "outputs": {name: list(array.shape) for name, array in self.outputs.items()},
            "scalars": list(self.result.scalars),
            "tile_products": counts.products,
            "multiply_adds": counts.multiply_adds,
            "chains": [asdict(chain) for chain in counts.chains],
        }

    def report(self) -> Report:
        """The outputs' shapes and the work of a sample."""
        counts = self.result.counts
        return Report(
            f"Simulation of {printable(self.source)}",
            "",
            [
                section(
                    *(f"{printable(name)}: {list(a.shape)}" for name, a in self.outputs.items()),
                    f"{counts.executions:,} chains and {counts.multiply_adds:,} multiply-adds a "
                    "sample",
                )
            ],
        )


@dataclass(frozen=True, eq=False)
class ConcordantSoftware(Reported):
    """Firmware as software with the same bits: files, and a function of arrays by name.

    path: the .py, .onnx or .c file
    work: a temporary folder of the files, deleted with this object; None where they stay
    """

    source: str
    to: str
    path: Path
    work: Path | None = None

    def __post_init__(self) -> None:
        if self.work is not None:
            weakref.finalize(self, shutil.rmtree, self.work, ignore_errors=True)

    @property
    def files(self) -> tuple[Path, ...]:
        """The file and its data."""
        from samebits.npu.concord.translate import DATA

        data = (self.path.with_suffix(suffix) for suffix in DATA.values())
        more = () if self.path.suffix != ".py" else (file for file in data if file.exists())
        return (self.path, *more)

    @cached_property
    def function(self) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        """The translation, loaded: it runs the file that was written."""
        from samebits.npu.concord.translate import load_concordant

        return load_concordant(self.path)

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, binary16, by name, for arrays by the names of the program's inputs."""
        return self.function(inputs)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "program": self.source,
            "to": self.to,
            "files": [str(file) for file in self.files],
        }

    def report(self) -> Report:
        """The files and their sizes."""
        lines = [f"written: {file} ({file.stat().st_size:,} bytes)" for file in self.files]
        return Report(f"{printable(self.source)} as {self.to}", "", [section(*lines)])


@settled
def simulate(program: Any, inputs: Any, *, trace: bool = False) -> SimulatorRun:
    """Execute a program of the neural processor instruction by instruction.

    program: an .nnp file, a compiled folder with one in it, or a Network of firmware
    inputs:  arrays by the names of the program's inputs, or as `Network.run` takes samples
    trace:   keep what every chain wrote, for `audit`

    Raises InputError for an illegal program and inputs that do not fit.
    """
    from samebits.files import read_archive
    from samebits.npu.simulator.simulate import simulate as execute
    from samebits.samples import gather
    from samebits.verification.backends.npu import chain_values
    from samebits.verification.trace import to_record

    model = _firmware(program)
    stored = isinstance(inputs, str | Path)
    arrays = (
        read_archive(Path(inputs))
        if stored
        else gather(inputs, model.interface, "inputs", whole=True)
    )
    progress.stage("simulating")
    result = execute(model.program, model.image, arrays, keep_values=trace)
    record = None
    if trace:
        runs = [chain_values(run) for run in result.trace]
        record = to_record(model, model.source, "npu", runs)
    return SimulatorRun(model.source, result.outputs, result, record)


@settled
def concord(program: Any, to: str = "torch", out: str | Path | None = None) -> ConcordantSoftware:
    """Firmware as software that computes the same bits: a function of arrays by name.

    program: as `simulate` takes it
    to:      torch, onnx, tensorflow or c
    out:     the .py, .onnx or .c file to write, data of a .py beside it; None: a temporary folder
             that is deleted with the result

    Raises InputError for an illegal program, another target, or an `out` whose data is the
    program's own memory image.
    """
    from samebits.npu.concord.translate import SUFFIXES, translate

    model = _firmware(program)
    work = None if out is not None else Path(tempfile.mkdtemp(prefix="samebits-"))
    name = f"concordant{SUFFIXES.get(to, '.py')}"
    out = work / name if work is not None else Path(out or name)
    image = Path(model.source).with_suffix(".safetensors")
    if to == "torch" and out.with_suffix(image.suffix).resolve() == image.resolve():
        raise InputError(
            f"--out {out}: expected a name whose data is not the program's memory image, found "
            f"{image} for both; choose another name or folder"
        )
    progress.stage("translating")
    software = ConcordantSoftware(model.source, to, out, work)  # deletes `work` with itself
    translate(model.program, model.image, to, out)
    return software


def _firmware(program: Any) -> Model:
    """The firmware that a program names."""
    if isinstance(program, Network):
        _ = program.model.program  # of a network: an error that says so
        return program.model
    if isinstance(program, str | Path):
        return load_firmware(Path(program))
    raise InputError(
        "expected an .nnp program, a compiled folder or a Network of firmware, found "
        f"{type(program).__name__}"
    )
