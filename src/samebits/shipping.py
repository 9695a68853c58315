"""From a trained network to the folder of a build system in one call: `sb.ship`, `samebits ship`.

A script over the front door, as a program of a user's own would be: it quantizes, verifies and
compiles by the calls that do so, and writes nothing unless all bits were the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits import api, progress
from samebits.callables import is_callable_name
from samebits.codegen.lowering.cpu import find_cpu
from samebits.codegen.packaging.package import PAGE, check_folder, replace_folder
from samebits.codegen.packaging.projects import check_name
from samebits.codegen.packaging.signature import given_key, signature_of
from samebits.codegen.run.interface import REPORT
from samebits.codegen.run.targets import find_board
from samebits.errors import InputError
from samebits.ir.fidelity import FLOOR, floor_of
from samebits.network import Network
from samebits.quantization import QuantizationReport
from samebits.recipes import (
    Calibration,
    Formats,
    Given,
    Packaging,
    Recipe,
    Recurrence,
    reading_of,
    takes,
)
from samebits.reports.quantization import fidelity_section, quantization_sections
from samebits.reports.report import Report, Reported, printable, section
from samebits.results import CompiledNetwork, Verification
from samebits.settled import settled
from samebits.verification.backends.generated_c import GeneratedC
from samebits.verification.compare import Verdict, compare
from samebits.verification.evaluate import judged
from samebits.verification.inputs import drawn
from samebits.verification.registry import backend_named

if TYPE_CHECKING:
    from samebits.contract import Contract
    from samebits.reports.html import Section
    from samebits.verification.quality import Quality

INPUTS, BOARD_INPUTS = "random:100", "random:8"  # an emulated board takes much longer


@dataclass(frozen=True, eq=False)
class Shipment(Reported):
    """A network as a package. True where all compared bits were the same; only then it was written.

    network:  quantized
    verification, on_board: on backends, and on the board where one was asked for
    compiled: the folder; None where the bits differ
    board:    its name, if any
    """

    network: Network
    verification: Verification
    compiled: CompiledNetwork | None = None
    on_board: Verification | None = None
    board: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder that was written; None where the bits differ."""
        return None if self.compiled is None else self.compiled.folder

    @property
    def page(self) -> Path | None:
        """The report of the network, in the folder."""
        return None if self.folder is None else self.folder / PAGE

    def __bool__(self) -> bool:
        return self.compiled is not None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        quantization, fidelity = self.network.quantization, self.network.fidelity
        return {
            "model": self.network.source,
            "out": None if self.folder is None else str(self.folder),
            "page": None if self.page is None else str(self.page),
            "notes": list(self.network.notes),
            "quantization": None if quantization is None else quantization.to_dict(),
            "fidelity": None if fidelity is None else fidelity.to_dict(),
            "verification": self.verification.to_dict(),
            "board": self.board,
            "on_board": None if self.on_board is None else self.on_board.to_dict(),
            "compiled": None if self.compiled is None else self.compiled.to_dict(),
        }

    def report(self) -> Report:
        """The network, what quantization cost, the verdicts, the package; the last line says where
        it is."""
        about = self.network.report().sections
        sections: list[Section] = [about[0]]
        if isinstance(self.network.quantization, QuantizationReport):
            sections.append(section(*_cost(self.network.quantization, self.network)))
        elif self.network.quantization is not None:
            sections.append(quantization_sections(self.network.quantization)[-1])
        if self.network.fidelity is not None:
            sections.append(fidelity_section(self.network.fidelity))
        if self.network.notes:
            sections.append(section(*(f"note: {note}" for note in self.network.notes)))
        sections += _titled("Verification", self.verification)
        if self.on_board is not None:
            sections += _titled(f"On the emulated {self.board}", self.on_board)
        if self.compiled is None:
            sections.append(section("nothing written: no package without the same bits"))
        else:
            sections += _titled(f"Package for {self.compiled.package}", self.compiled)
            sections.append(section(f"report: {self.page}"))
        return Report(f"Shipping {printable(self.network.source)}", "", sections)


def _cost(report: QuantizationReport, net: Network) -> list[str]:
    """Lines on what quantization lost and saved; the whole table is on the page."""
    outputs = {value.name for value in net.outputs}
    ratios = [
        f"{printable(tensor.name)}: "
        + ("exact" if tensor.sqnr_db is None else f"{tensor.sqnr_db:.1f} dB to the float network")
        for tensor in report.tensors
        if tensor.name in outputs
    ]
    samples = f"calibrated on {report.calibration_samples} samples, compared on {report.samples}"
    return [*ratios, samples]


def _titled(title: str, result: Reported) -> list[Section]:
    """The sections of a result, the first of them under a title."""
    first, *others = result.report().sections
    return [replace(first, title=title), *others]


@settled
@takes(Formats, Calibration, Recurrence, Packaging, data="calibration")
def ship(
    source: Any,
    calibration: Any = None,
    out: str | Path = "firmware",
    *recipes: Recipe,
    backends: Sequence[str] | None = None,
    board: str | None = None,
    sign: str | Path | None = None,
    contract: Contract | Mapping[str, Any] | str | Path | None = None,
) -> Shipment:
    """Import, quantize, verify and package a network; the folder `out` is written last, as a whole.

    Where any compared bit differs nothing is written, an earlier folder stays, and the result is
    false.

    source:      as `load` takes it. A network that is quantized already, as a training folder in
                 block floating point is, is taken as it is: a note says so, and calibration and
                 recipes of quantization are errors
    calibration: as `quantize` takes it
    out:         folder to write: the package, model.onnx and report.html
    recipes:     Packaging, and those of `quantize`: Formats, Calibration, Recurrence. An output has
                 to keep 10 dB where `floor` says nothing; of a network that is quantized already,
                 what its file says counts
    backends:    to compare on 100 random inputs, as `Network.verify` takes them. The C that will be
                 written is compared too, where this machine has a compiler
    board:       an emulated Cortex-M that computes 8 random inputs too, with the kernels of its
                 processor, such as cortex-m3
    sign:        a key, as `Network.compile` takes it
    contract:    as `Network.with_contract` takes it

    Raises InputError for options that do not apply, an `out` that holds other files, and a board or
    backend that cannot run here, all before any work; else as `quantize` and `Network.compile`.
    """
    out = Path(out)
    asked = Given("ship", recipes, Formats, Calibration, Recurrence, Packaging)
    packaging, least = asked[Packaging], asked[Calibration].floor
    check_name(packaging.package, packaging.prefix)
    packaging = packaging.but(cpu=_checked(packaging.cpu, backends, board))
    check_folder(out)
    key = given_key(sign)
    wanted = FLOOR if least is None else floor_of(least)
    net = _as_it_is(source, calibration, asked)
    if net is None:
        net = api.quantized(source, calibration, asked, None, contract, FLOOR)
    elif contract is not None:
        net = net.with_contract(contract)
    net.check_fidelity(wanted)
    found = _verified(net, backends, packaging.cpu)
    on_board = None
    if found and board is not None:
        on_board = net.verify(BOARD_INPUTS, [board])
    if not found or (on_board is not None and not on_board):
        return Shipment(net, found, None, on_board, board)
    compiled = _written(net, found, out, packaging, key, _judged(net, calibration))
    return Shipment(net, found, compiled, on_board, board)


def _verified(net: Network, backends: Sequence[str] | None, cpu: str | None) -> Verification:
    """The backends, and the C that will be written on this machine, whatever they are: with the
    kernels of its processor, which are in plain C too."""
    found = net.verify(INPUTS, backends)
    c = GeneratedC("c", cpu=cpu)
    if not found or c.name in [v.backend for v in found.verdicts]:
        return found
    progress.stage(f"verifying: {c.name}")
    why = c.unavailable()
    if why is not None:
        verdict = Verdict(c.name, skipped=why)
    else:
        computed = c.run(net.model, drawn(INPUTS, net.interface))
        verdict = compare(c.name, net.interface, list(found.outputs.values()), computed)
    return replace(found, verdicts=(*found.verdicts, verdict))


def _checked(cpu: str | None, backends: Sequence[str] | None, board: str | None) -> str | None:
    """The processor that the C is for, after a look at options that would fail late.

    Raises InputError.
    """
    if cpu is not None:
        find_cpu(cpu)
    if isinstance(backends, str):
        raise InputError(
            f"backends: expected a list of names, found the text {backends!r}; give a list"
        )
    for name in backends or ():
        reason = backend_named(name).unavailable()
        if reason is not None:
            raise InputError(f"backend {name} cannot run here: {reason}; leave it out")
    if board is None:
        return cpu
    target = find_board(board)
    own = target.cpu
    if cpu not in (None, own):
        raise InputError(
            f"--cpu: expected {own}, whose kernels run on --board {board}, found {cpu}; leave "
            "--cpu out, or choose another board"
        )
    reason = target.unavailable()
    if reason is not None:
        raise InputError(f"--board {board} cannot run here: {reason}; leave it out")
    return own


def _is_module(source: Any) -> bool:
    """Whether it is a torch.nn.Module or names what gives one, whose example calibration has."""
    if isinstance(source, str):
        return is_callable_name(source) and not Path(source).exists()
    from torch import nn

    return isinstance(source, nn.Module)


def _as_it_is(source: Any, calibration: Any, asked: Given) -> Network | None:
    """A network that has an integer form; None for one to quantize, which needs a calibration.
    InputError for firmware and needless options."""
    samples, reading = reading_of(calibration)
    net = None if _is_module(source) else api.load(source)
    if net is None or net.kind == "float network":
        if samples is None:
            raise InputError(
                "expected --data SAMPLES for a float network, found none; give samples of "
                "its inputs: an .npz file, digits, or a folder of images or recordings"
            )
        return None
    if not net.quantized:
        raise InputError(
            f"{net.source}: expected a float or quantized network to ship, found {net.kind}; give "
            "the network it was compiled from"
        )
    needless = {"data": samples, **reading.chosen()}
    for kind in (Formats, Calibration, Recurrence):
        needless |= asked[kind].chosen()
    needless.pop("floor", None)
    for option, value in needless.items():
        if value is not None:
            raise InputError(
                f"--{option.replace('_', '-')} does not apply to {net.source}, which is a "
                f"{net.kind} already; leave it out"
            )
    article = "an" if net.kind.startswith("i") else "a"
    note = f"{net.source} is {article} {net.kind} already: nothing was calibrated or quantized"
    # Of a compiled folder the network is taken: the C that is compared is what will be written.
    return replace(net, model=replace(net.model, package=None), notes=(*net.notes, note))


def _judged(net: Network, calibration: Any) -> Quality | None:
    """How good the answers are to the test samples of what it was calibrated on, where they have
    labels."""
    if calibration is None:
        return None
    found = judged(net.model, calibration)
    return None if isinstance(found, str) else found


def _written(
    net: Network,
    found: Verification,
    out: Path,
    how: Packaging,
    key: Path | None,
    quality: Quality | None,
) -> CompiledNetwork:
    """The package and the page, as one folder that takes the place of an earlier one."""
    with tempfile.TemporaryDirectory(prefix="samebits-") as work:
        folder = Path(work, "package")
        compiled = net.compile(folder, how, sizes=True)
        assert isinstance(compiled, CompiledNetwork)
        saved = replace(compiled, folder=out)
        net.report(quality, verified=found, saved=saved).save(folder / PAGE)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
    sha256 = replace_folder(out, files, key)
    audio = None if compiled.audio is None else out / compiled.audio.name
    signature = None if key is None else out / signature_of(REPORT)
    return replace(compiled, folder=out, audio=audio, report_sha256=sha256, signature=signature)
