"""Results of the front door's functions: data, JSON and a report each.

A command of the command line prints one of them: its report as text, or its `to_dict` as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samebits.errors import InputError
from samebits.reports.html import PageBlock, Section, Table
from samebits.reports.report import Report, Reported, printable, section
from samebits.settled import settled
from samebits.verification.compare import agreeing, cells
from samebits.verification.score import Score, accuracy_of, figures_text

if TYPE_CHECKING:
    from samebits.codegen.packaging.package import PackageReport
    from samebits.codegen.run.profile import LayerCost
    from samebits.codegen.run.requirements import Requirements
    from samebits.ir.integer.transfer import TransferTables
    from samebits.model import Model
    from samebits.npu.machine.program import Program
    from samebits.predictions import Prediction
    from samebits.recompute.plan.cost import Device
    from samebits.recompute.plan.plan import Plan
    from samebits.train.run.config import TrainConfig
    from samebits.train.run.loop import TrainResult
    from samebits.train.run.profile import StepProfile
    from samebits.verification.compare import Verdict
    from samebits.verification.trace import Parting
    from samebits.verification.training_trace import TrainingParting

Array = np.ndarray[Any, Any]
SAME = {True: "same bits: yes", False: "same bits: NO", None: "nothing compared"}


@dataclass(frozen=True, eq=False)
class Verification(Reported):
    """One model on several backends, compared for equality. True where all bits are the same.

    outputs:  those of the backend that defines the bits, by name, as codes (firmware: binary16)
    verdicts: one for each of the other backends
    inputs:   as the command line names the samples; "" for what it cannot name
    reading:  how they were read: the options that were given (`samebits.read`)
    seed:     of random:N
    sealed:   the SHA-256 of report.json (of a training folder: result.json), of a folder whose
              files were all found to be as that states; "" of anything else
    checked:  what of the folder was compared, and what was not
    signer:   who signed it, by the name in the file of allowed signers
    refused:  why a folder was not run: which of its files differ, that another version wrote it, or
              that no signature of it holds
    """

    source: str
    samples: int
    outputs: Mapping[str, Array]
    verdicts: tuple[Verdict, ...]
    inputs: str = ""
    reading: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    sealed: str = ""
    checked: str = ""
    signer: str = ""
    refused: str = ""

    @property
    def same_bits(self) -> bool | None:
        """Whether no compared output differs; None where nothing was compared."""
        compared = [v for v in self.verdicts if v.skipped is None]
        return all(v.equal for v in compared) if compared else None

    def __bool__(self) -> bool:
        return bool(self.same_bits)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "model": self.source,
            "samples": self.samples,
            "same_bits": self.same_bits,
            "verdicts": [v.to_dict() for v in self.verdicts],
            **({"report_sha256": self.sealed} if self.sealed else {}),
            **({"refused": self.refused} if self.refused else {}),
            **({"checked": self.checked} if self.checked else {}),
            **({"signer": self.signer} if self.signer else {}),
        }

    def report(self) -> Report:
        """A row per backend, the first differences, what was not compared, the verdict."""
        compared = [v for v in self.verdicts if v.skipped is None]
        inner = any(v.between[1] for v in compared)
        rows = [cells(v, inner) for v in compared]
        lines = self.refused.split("\n") if self.refused else []
        for v in self.verdicts:
            if v.skipped is not None:
                lines.append(f"{v.backend}: not compared: {v.skipped}")
            lines += [
                f"{v.backend}: output {d.output!r} {list(d.index)}: {d.expected} != {d.found}"
                for d in v.first
            ]
            if v.note and not v.equal:
                lines.append(f"{v.backend}: {v.note}")
        if self.checked:
            lines.append(printable(self.checked))
        if self.signer:
            lines.append(f"signed by {printable(self.signer)}")
        lines += agreeing(compared)
        between = ("between", "of") if inner else ()
        columns = ("backend", "differing", "of", *between, "largest", "samples", "sha256")
        table = [Table(columns, rows, code=columns[-1:])] if rows else []
        left_out = sum(v.skipped is not None for v in self.verdicts)
        verdict = SAME[self.same_bits] + (f" ({left_out} not compared)" if left_out else "")
        return Report(
            f"{printable(self.source)} on {self.samples:,} samples",
            "",
            [section(*table, *lines), section(verdict)],
        )


@dataclass(frozen=True, eq=False)
class Generation(Reported):
    """The text of a language model after a prompt. True where all backends drew the same tokens.

    tokens: by backend
    """

    source: str
    prompt: tuple[int, ...]
    seed: int
    tokens: Mapping[str, list[int]]

    @property
    def same_tokens(self) -> bool:
        """Whether all backends drew the same."""
        first, *others = self.tokens.values()
        return all(tokens == first for tokens in others)

    def __bool__(self) -> bool:
        return self.same_tokens

    @property
    def text(self) -> str:
        """The prompt and what follows on the first backend, tokens being bytes of UTF-8; others
        are shown as numbers."""
        shown = [*self.prompt, *next(iter(self.tokens.values()))]
        if max(shown) > 255:
            return " ".join(map(str, shown))
        return bytes(shown).decode("utf-8", errors="replace")

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "model": self.source,
            "prompt": list(self.prompt),
            "seed": self.seed,
            "same_tokens": self.same_tokens,
            "text": self.text,
            "tokens": dict(self.tokens),
        }

    @property
    def lines(self) -> list[str]:
        """The text, and where backends part."""
        first, *others = self.tokens
        lines = []
        for name in others:
            pairs = zip(self.tokens[first], self.tokens[name], strict=True)
            parting = [step for step, (a, b) in enumerate(pairs) if a != b]
            if parting:
                lines.append(f"{name}: another token than {first} from token {parting[0]} on")
        if others and not lines:
            count = len(self.tokens[first])
            lines.append(f"the same {count:,} tokens on {', '.join(self.tokens)}")
        return [*map(printable, self.text.split("\n")), *lines]

    def report(self) -> Report:
        """The text, and where backends part."""
        count = len(next(iter(self.tokens.values())))
        title = f"{printable(self.source)}: {count:,} tokens, seed {self.seed}"
        return Report(title, "", [section(*self.lines)])


@dataclass(frozen=True, eq=False)
class CompiledNetwork(Reported):
    """A folder of generated C: its memory by kind, and what boards need.

    audio: folder of the features, for a model of recordings. package: the layout of the folder
    model: the network as data. report_sha256: of report.json, which states that of all other files
    signature: of report.json, if a key was given
    """

    source: str
    folder: Path
    memory: PackageReport
    tables: TransferTables
    targets: tuple[Requirements, ...]
    rate: int | None = None
    audio: Path | None = None
    package: str = "make"
    model: Model | None = None
    report_sha256: str = ""
    signature: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "model": self.source,
            "out": str(self.folder),
            "package": self.package,
            "report_sha256": self.report_sha256,
            "signature": _named(self.signature),
            "memory": asdict(self.memory),
            "tables": asdict(self.tables),
            "targets": [asdict(needs) for needs in self.targets],
        }

    def report(self) -> Report:
        """Bytes by target, shared tables, where the C is and how to test it; the page shows the
        network too."""
        memory, t = self.memory, self.tables
        rows: list[tuple[str, ...]] = [
            ("weights and tables, arena", "", f"{memory.constants:,}", f"{memory.arena:,}", "", "")
        ]
        lines = []
        for needs in self.targets:
            if needs.why is not None:
                lines.append(f"{needs.target}: not measured: {needs.why}")
                continue
            own = (needs.code, needs.flash, needs.ram, needs.stack)
            harness = f"{needs.harness_flash:,} + {needs.harness_ram:,}"
            rows.append((needs.target, *(f"{size:,}" for size in own), harness))
        if memory.block:
            lines.append(
                f"arena where model_steps computes blocks of steps (not on Cortex-M): "
                f"{memory.block:,} bytes"
            )
        if t.pairs:
            lines.append(
                f"{t.pairs} transfer functions share {t.tables} tables: {t.bytes:,} bytes in C "
                f"instead of {t.unshared:,}"
            )
        if memory.state:
            lines.append(
                f"states from step to step: {memory.state:,} bytes of RAM of the caller's own "
                f"({memory.prefix}_state_t)"
            )
        if self.audio is not None:
            lines.append(f"features of sound at {self.rate} Hz: {self.audio}")
        columns = ("bytes", "machine code", "flash", "RAM", "stack", "harness")
        return Report(
            f"C of {printable(self.source)}",
            "",
            [
                section(Table(columns, rows), *lines),
                section(
                    *_sealed(self.report_sha256, self.signature),
                    f"written: {self.folder}; try: make -C {self.folder} test"
                    if self.package == "make"
                    else f"written: {self.folder}, for {self.package}; see its README.md",
                ),
            ],
            None if self.model is None else self._page,
        )

    def _page(self) -> list[Section]:
        """The page of the network, with the table of the C after the verdict."""
        from samebits.reports.facts import kind_name
        from samebits.reports.page.network import NetworkFacts, network_sections

        assert self.model is not None
        made = [section(*part.blocks, title="Generated C") for part in self.report().sections[:1]]
        facts = NetworkFacts(
            made=made, saved=str(self.folder), cpu=self.memory.cpu, needs=self.targets
        )
        return network_sections(self.model, kind_name(self.model), facts)


def _named(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _sealed(sha256: str, signature: Path | None) -> list[str]:
    """The lines of a folder's report and of its signature."""
    lines = [f"report.json, which seals all files: sha256 {sha256}"]
    return lines if signature is None else [*lines, f"signed: {signature}"]


@dataclass(frozen=True, eq=False)
class Profile(Reported):
    """Instructions of a network's C on an emulated board, layer by layer.

    total: of one run as a whole, measured by itself
    """

    source: str
    board: str
    layers: tuple[LayerCost, ...]
    total: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "model": self.source,
            "board": self.board,
            "total": self.total,
            "layers": [asdict(layer) for layer in self.layers],
        }

    def report(self) -> Report:
        """A table of the layers, and a chart."""
        from samebits.reports.profile import profile_report

        return profile_report(self.source, self.board, self.layers, self.total)


@dataclass(frozen=True, eq=False)
class TrainingProfile(Reported):
    """Where the time of a training step goes on this machine, kernel call by kernel call."""

    source: str
    profile: StepProfile

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; times in seconds."""
        return {"model": self.source, **asdict(self.profile)}

    def report(self) -> Report:
        """Tables of layers and kernels, and a chart."""
        from samebits.reports.step import step_report

        return step_report(self.source, self.profile)


@dataclass(frozen=True, eq=False)
class Firmware(Reported):
    """A program of the neural processor, written with its memory image beside it.

    report_sha256: of report.json, which states that of both. signature: of it, if a key was given
    """

    source: str
    path: Path
    program: Program
    report_sha256: str = ""
    signature: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        program = self.program
        return {
            "model": self.source,
            "out": str(self.path),
            "native": program.native,
            "mantissa": program.mantissa,
            "instructions": len(program.instructions),
            "inputs": {h.name: list(h.shape) for h in program.hints if h.kind == "input"},
            "outputs": {h.name: list(h.shape) for h in program.hints if h.kind == "output"},
            "depths": dict(program.depths),
            "report_sha256": self.report_sha256,
            "signature": _named(self.signature),
        }

    def report(self) -> Report:
        """The program's size, and how to run it; its page."""
        count, native = len(self.program.instructions), self.program.native
        return Report(
            f"Firmware of {printable(self.source)}",
            f"{count} instructions, native dimension {native}",
            [
                section(
                    *_sealed(self.report_sha256, self.signature),
                    f"written: {self.path}; try: samebits simulate {self.path} --data X.npz "
                    "--out Y.npz",
                )
            ],
            self._page,
        )

    def _page(self) -> list[Section]:
        from samebits.model import load_firmware
        from samebits.reports.page.firmware import firmware_sections

        return firmware_sections(load_firmware(self.path), None)


@dataclass(frozen=True)
class Evaluation(Score, Reported):
    """Test accuracy, with a report."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        record: dict[str, Any] = {"model": self.source, "data": self.data}
        record["arithmetic"] = self.arithmetic
        if self.sha256 is not None:
            record |= {"sha256": self.sha256, "step": self.step}
        return {
            **record,
            "accuracy": None if self.correct is None else self.accuracy,
            "correct": self.correct,
            "test_count": self.total,
            **({} if self.metrics is None else {"metrics": dict(self.metrics)}),
        }

    def report(self) -> Report:
        """The accuracy, in which arithmetic, of which parameters."""
        lines = [
            *_scored(self.metrics, self.correct, self.total),
            f"arithmetic: {self.arithmetic}",
        ]
        if self.sha256 is not None:
            lines.append(f"sha256 {self.sha256}")
        return Report(f"{printable(self.source)} on {self.data}", "", [section(*lines)])


@dataclass(frozen=True, eq=False)
class TrainingRun(Reported):
    """A finished training run: its folder, its options and its figures."""

    folder: Path
    config: TrainConfig
    result: TrainResult

    @property
    def accuracy(self) -> float:
        """Share of correct test samples, in [0, 1]. Raises InputError for a regression."""
        return accuracy_of(self.result.accuracy)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Figures of a task other than classification, by name: rmse, mae, r2; exact_match,
        mean_f1; pixel_accuracy, mean_iou."""
        return self.result.metrics or {}

    @settled
    def predict(self, data: Any, backend: str | None = None) -> Prediction:
        """As `Network.predict`, by the network of this run."""
        from samebits.model import load
        from samebits.predictions import predict

        return predict(load(self.folder), data, backend)

    @property
    def sha256(self) -> str:
        """Hash of the parameters."""
        return self.result.sha256

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "out": str(self.folder),
            "config": self.config.to_dict(),
            **self.result.to_dict(),
        }

    def report(self) -> Report:
        """Accuracy and hash."""
        r = self.result
        lines = _scored(r.metrics, r.correct, r.test_count)
        if r.nats_per_token is not None:
            lines.append(f"{r.nats_per_token:.4f} nats per token")
        lines += r.float_islands or []
        title = f"{self.config.arch} {self.config.numerics} on {self.config.data}"
        return Report(title, "", [section(*lines, f"sha256 {r.sha256}")])


def _scored(metrics: Mapping[str, float] | None, correct: int | None, total: int) -> list[str]:
    """Figures of a test as lines."""
    if metrics is not None:
        return [f"{', '.join(figures_text(metrics))} ({total} tested)"]
    assert correct is not None
    return [f"accuracy {100 * correct / total:.2f} % ({correct} of {total})"]


@dataclass(frozen=True, eq=False)
class MemoryPlan(Reported):
    """The results that a training step keeps, and those that it computes again.

    plan:    the decision for every sub-layer, and the figures
    picture: memory over the time of a pass, SVG; drawn when it is called. None for a plan that was
             read from a file
    forward: of a module in BFP: takes its place in training steps under the plan
    step:    of a module in float32: computes the loss of a batch under the plan, as the function
             of `sb.within` does
    """

    plan: Plan
    picture: Callable[[], bytes] | None = None
    forward: Callable[..., Any] | None = None
    step: Callable[..., Any] | None = None

    def save(self, path: str | Path) -> Path:
        """Write the plan, for `samebits train --plan FILE`."""
        from samebits.recompute.plan.plan import write_plan

        write_plan(Path(path), self.plan)
        return Path(path)

    def compare(self, *others: MemoryPlan) -> PlanComparison:
        """This plan beside others of the same step, for other devices, budgets or orders.

        Raises InputError for a plan of another step.
        """
        mine = [(layer.name, layer.bytes) for layer in self.plan.layers]
        for other in others:
            if [(layer.name, layer.bytes) for layer in other.plan.layers] != mine:
                raise InputError(
                    f"expected plans of one step, found those of {self.plan.arch} with "
                    f"{len(mine):,} results and of {other.plan.arch} with "
                    f"{len(other.plan.layers):,}, or of other sizes; plan both for the same batch"
                )
        return PlanComparison((self.plan, *(other.plan for other in others)))

    def save_picture(self, path: str | Path) -> Path:
        """Write the drawing of memory over time, an SVG file."""
        from samebits.files import write_atomically

        if self.picture is None:
            raise InputError(
                "expected a plan that was just made, found one from a file, which holds no times; "
                "plan again to draw it"
            )
        write_atomically(Path(path), self.picture())
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return self.plan.to_dict()

    def report(self) -> Report:
        """A row per sub-layer and the figures; on the page with the drawing."""
        from samebits.reports.page.plan import plan_sections
        from samebits.reports.recompute import plan_rows, plan_summary

        columns, rows = plan_rows(self.plan)
        blocks: list[PageBlock] = [Table(columns, rows)]
        return Report(
            f"Plan of {printable(self.plan.arch)} for {self.plan.device}",
            "",
            [section(*blocks), section(*plan_summary(self.plan))],
            lambda: plan_sections(self.plan, None if self.picture is None else self.picture()),
        )


@dataclass(frozen=True, eq=False)
class PlanComparison(Reported):
    """Plans of one step beside each other."""

    plans: tuple[Plan, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON data: every plan, and the numbers of results that not all of them store."""
        from samebits.reports.recompute import differing

        plans = [plan.to_dict() for plan in self.plans]
        return {"plans": plans, "different": differing(self.plans)}

    def report(self) -> Report:
        """A row per plan, and one per result that not all of them store."""
        from samebits.reports.recompute import compared_plans, compared_results

        columns, rows = compared_results(self.plans)
        results = Table(columns, rows) if rows else "All plans store the same results."
        plans = Table(*compared_plans(self.plans))
        title = f"Plans of {printable(self.plans[0].arch)}"
        return Report(title, "", [section(plans), section(results)])


@dataclass(frozen=True, eq=False)
class Trace(Reported):
    """The hash of every layer in every run, and the codes where the backend has them."""

    record: Mapping[str, Any]

    def save(self, path: str | Path) -> Path:
        """Write the trace, a JSON file for `samebits audit`."""
        import json

        from samebits.files import write_atomically

        write_atomically(Path(path), (json.dumps(self.record) + "\n").encode())
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return dict(self.record)

    def report(self) -> Report:
        """The layers of the first run with their hashes."""
        from samebits.reports.summary import trace_table

        layers, runs = self.record["layers"], self.record["runs"]
        return Report(
            f"Trace of {printable(str(self.record.get('model', '')))} on "
            f"{printable(str(self.record.get('backend', '')))}",
            f"{len(layers)} layers, {len(runs)} runs",
            [section(trace_table(self.record))],
        )


@dataclass(frozen=True, eq=False)
class Audit(Reported):
    """Two traces compared. True where they are equal.

    parting: the first place where they differ, None if there is none
    steps:   number of training steps that agree, None for traces of a model's runs
    """

    sources: tuple[str, str]
    parting: Parting | TrainingParting | None
    steps: int | None = None

    def __bool__(self) -> bool:
        return self.parting is None

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        more = {} if self.steps is None else {"steps": self.steps}
        parting = None if self.parting is None else self.parting.to_dict()
        return {"same_bits": bool(self), **more, "parting": parting}

    def report(self) -> Report:
        """Where the traces part, and the verdict."""
        lines = [] if self.steps is None else [f"{self.steps} steps agree"]
        if self.parting is not None:
            lines += self.parting.lines(*self.sources)
        return Report(
            " and ".join(map(printable, self.sources)),
            "",
            [section(*lines, SAME[bool(self)])],
        )


@dataclass(frozen=True, eq=False)
class MeasuredDevice(Reported):
    """This machine, as a device that plans are made for."""

    device: Device

    @property
    def text(self) -> str:
        """The device file (TOML)."""
        from samebits.recompute.plan.cost import device_text

        return device_text(self.device)

    def save(self, path: str | Path) -> Path:
        """Write the device file, for `samebits plan --device` and `train --plan-device`."""
        from samebits.files import write_atomically

        write_atomically(Path(path), self.text.encode())
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self.device)

    def report(self) -> Report:
        """The device file itself."""
        return Report("", "", [section(self.text.rstrip())])
