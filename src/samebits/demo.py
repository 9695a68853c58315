"""The demo: digits, and a text, from training to devices, a script over the front door.

It is written as a program of your own would be: `sb.fit` trains, `sb.quantize` quantizes, a
network compiles itself and verifies itself on every backend. docs/guide/python.md describes the
calls.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

import samebits as sb
from samebits import data as datasets
from samebits import kernels
from samebits.errors import InputError
from samebits.recipes import Recipe
from samebits.reports.deployment import (
    Deployment,
    agree,
    deployment_section,
    deployment_text,
    unproved,
)
from samebits.reports.firmware import Concordance, concordance_section, concordance_text
from samebits.reports.html import Command, PageBlock, Paragraph, Section, Status, Table
from samebits.reports.page.matrix import matrix_of
from samebits.reports.recompute import plan_section
from samebits.reports.report import Report, Reported, section
from samebits.reports.same_bits import same_bits_section, same_bits_text
from samebits.reports.training import Run, training_sections, training_text
from samebits.results import CompiledNetwork, Firmware, Generation
from samebits.train.architectures import gpt
from samebits.train.run.record import read_metrics
from samebits.verification.registry import backend_named

if TYPE_CHECKING:
    from samebits.data import Dataset
    from samebits.results import MemoryPlan, TrainingRun, Verification
    from samebits.train.run.loop import Reporter

Array = np.ndarray[Any, Any]
T = TypeVar("T")

EPOCHS, SMOOTH_EPOCHS, LSTM_EPOCHS = 5, 10, 15
BATCH = 64
LR = 0.2  # of the float32 networks on their way to a device
BUDGET = "97%"  # of what storing everything takes; no plan of this network holds less than 96 %
CALIBRATION = 256  # images
STREAMED = 20  # images whose rows every backend computes one by one
SIMULATED = 50  # images that the simulator computes
TEXT_BYTES = 1 << 18  # of the documentation that Python ships
TEXT_SHA256 = "3fa320802a2347f60f9b09b47e1a136cad619936537413802081cab21e3d4361"  # CPython 3.11.7
CONTEXT, WIDTH, DEPTH = 64, 64, 2  # of the language model
TOKENS, PROMPT = 100, "The "
SPEAKERS = ("torch", "c", "cortex-m3")
BACKENDS = (
    *("torch", "c", "cortex-m0", "cortex-m3", "cortex-m55"),
    *("onnxruntime", "onnxruntime-optimized", "onnxruntime-float", "onnxruntime-integer"),
)


# --- the script ---------------------------------------------------------------------------------


def _unheard(title: str) -> None:
    """No reporter for a run."""


def run(
    out: str | Path,
    seed: int = 0,
    threads: int | None = None,
    reporter_of: Callable[[str], Reporter | None] = _unheard,
) -> DemoResult:
    """Train on handwritten digits, quantize, compile and verify; leaves all files in `out`.

    seed:        of everything that is random
    threads:     CPU threads of training
    reporter_of: gives the reporter of a run (`sb.fit`) by its title

    Raises InputError where `out` holds training runs of other options.
    """
    out = Path(out)
    data = datasets.load("digits")

    own = sb.Execution(threads=threads, overwrite=True)

    def train(
        title: str,
        arch: Any,
        folder: Path,
        epochs: int,
        *recipes: Recipe,
        how: sb.Execution = own,
        on: Dataset = data,
        batch: int = BATCH,
    ) -> Any:
        """One run of an architecture, a TrainingRun."""
        training = sb.Training(epochs=epochs, batch=batch, seed=seed)
        done = sb.fit(on, arch, folder, training, how, *recipes, reporter=reporter_of(title))
        if done is None:
            raise InputError("expected one process, found workers of torchrun; run the demo alone")
        return done

    # The same network in block floating point and in float32.
    in_float = sb.Numerics(numerics="float32")
    bfp = train("cnn bfp", "cnn", out / "bfp", EPOCHS)
    float32 = train("cnn float32", "cnn", out / "float32", EPOCHS, in_float)

    # The BFP run once more by a plan that holds less memory, and once more with other kernels.
    plan = sb.plan(
        "cnn",
        None,
        sb.Training(batch=BATCH),
        sb.Recomputation(memory_budget=BUDGET),
        input_shape=data.input_shape,
        classes=data.classes,
        threads=threads,
    )
    stored = plan.save(out / "plan.json")
    native = f"{kernels.realisation()} kernels, {threads or torch.get_num_threads()} threads"
    with tempfile.TemporaryDirectory() as work:
        title = "cnn bfp, within a memory budget"
        planned = train(
            title, "cnn", Path(work) / "planned", EPOCHS, sb.Recomputation(plan=str(stored))
        )
        with kernels.use("eager"):
            title = "cnn bfp, PyTorch kernels"
            again = train(title, "cnn", Path(work) / "eager", EPOCHS, how=own.but(threads=1))
    hashes = {
        native: bfp.sha256,
        f"{native}, recomputed within a memory budget": planned.sha256,
        "PyTorch kernels, 1 thread": again.sha256,
    }

    # Two float networks for quantization after training.
    common = in_float, sb.Optimizer(lr=LR)
    smooth = train("smooth float32", "smooth", out / "smooth", SMOOTH_EPOCHS, *common)
    lstm = train("lstm float32", "lstm", out / "lstm", LSTM_EPOCHS, *common)

    # A language model of Python's own documentation, and what it says on every backend.
    text, notes = _documentation()
    module = gpt(256, CONTEXT, width=WIDTH, depth=DEPTH)
    adamw = sb.Optimizer(optimizer="adamw", lr=0.003)
    train("gpt bfp", module, out / "gpt", 1, adamw, on=text, batch=16)
    speakers = {name: backend_named(name).unavailable() for name in SPEAKERS if name in BACKENDS}
    spoken = sb.load(out / "gpt", arch=module).generate(
        PROMPT,
        TOKENS,
        seed=seed,
        top_k=40,
        temperature=0.7,
        backends=[name for name, reason in speakers.items() if reason is None],
    )
    notes += [f"not compared: tokens of {reason}" for reason in speakers.values() if reason]

    # Everything to devices.
    net = sb.load(out / "bfp")
    result = DemoResult(
        out,
        {"bfp": bfp, "float32": float32},
        hashes,
        plan,
        (
            _deploy_bfp(net, data, out),
            _deploy_smooth(smooth, data, out),
            _deploy_lstm(lstm, data, out),
        ),
        _make_firmware(net, data, out / "npu"),
        spoken,
        [*_without_native(), *notes],
    )
    result.report().save(result.page)
    return result


def _documentation() -> tuple[Dataset, list[str]]:
    """The first bytes of the texts that Python's help() shows, as data of a language model, and a
    sentence where this Python has others."""
    from pydoc_data.topics import topics

    raw = "\n".join(topics[name] for name in sorted(topics)).encode()[:TEXT_BYTES]
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "documentation.txt"
        path.write_bytes(raw)
        data = datasets.load(str(path), input_shape=(CONTEXT,))
    data = replace(data, source="the documentation of Python")
    found = hashlib.sha256(raw).hexdigest()
    if found == TEXT_SHA256:
        return data, []
    return data, [
        f"the text is that of this Python (sha256 {found[:16]}), not of CPython 3.11.7: the tokens "
        "are others, the same on all backends"
    ]


def _without_native() -> list[str]:
    """A sentence where this machine has one realisation of the training kernels only."""
    if kernels.realisation() != "eager":
        return []
    return ["not compared: native kernels on the BFP run: only the PyTorch kernels serve here"]


def _deploy_bfp(net: sb.Network, data: Dataset, out: Path) -> Deployment:
    """The BFP network with frozen exponents, on every backend on the whole test set."""
    backends = ("training", *BACKENDS)
    checked = net.verify(data.values(data.test_images), backends, available=True)
    return _deployed(
        "the CNN",
        "From training to C",
        "The network trained in BFP, with its exponents frozen, exported and compiled to C99 "
        "without floating point. Every backend computes the logits of the whole test set.",
        net,
        checked,
        data,
        out / "c-bfp",
    )


def _deploy_smooth(trained: TrainingRun, data: Dataset, out: Path) -> Deployment:
    """The float network with tanh, GELU and sigmoid, quantized, on the whole test set."""
    net = sb.quantize(trained.folder, data.values(data.train_images[:CALIBRATION]))
    net.save(out / "smooth-int8.onnx")
    checked = net.verify(data.values(data.test_images), BACKENDS, available=True)
    return _deployed(
        "the smooth network",
        "From a float PyTorch model to C",
        "A float32 network with tanh, GELU and sigmoid, imported from PyTorch, quantized to 8 bits "
        f"after training with {CALIBRATION} images. Each function between two quantized layers is "
        "one table lookup; every entry is correctly rounded.",
        net,
        checked,
        data,
        out / "c-smooth",
        trained,
    )


def _deploy_lstm(trained: TrainingRun, data: Dataset, out: Path) -> Deployment:
    """The float LSTM over the rows of the images, quantized, on the steps of some images."""
    net = sb.quantize(trained.folder, data.values(data.train_images[:CALIBRATION]))
    net.save(out / "lstm-int8.onnx")
    steps = _steps(net, data.values(data.test_images[:STREAMED]).numpy())
    checked = net.verify(steps, BACKENDS, available=True)
    return _deployed(
        "the LSTM",
        "From a float LSTM to C",
        "Two LSTM layers of 64 cells that read the images row by row, trained in float32 and "
        "quantized gate by gate to 8 bits with 16-bit gates and cells. The C takes one row at a "
        "time and keeps the states between calls. The accuracy is that of the whole test set; "
        f"every backend computes all steps of its first {STREAMED} images, states included.",
        net,
        checked,
        data,
        out / "c-lstm",
        trained,
    )


def _steps(net: sb.Network, images: Array) -> dict[str, Array]:
    """The inputs of all time steps over the rows of images: a row, and the states before it."""
    graph = net.interface
    (rows,) = graph.own_inputs
    states = {
        state.input: np.zeros((len(images), *graph.values[state.input].shape[1:]), np.float32)
        for state in graph.states
    }
    steps = []
    for row in np.split(images, images.shape[2], axis=2):
        steps.append({rows: row, **states})
        outputs = net.run(steps[-1], "torch")
        states = {state.input: outputs[state.output] for state in graph.states}
    return {name: np.concatenate([step[name] for step in steps]) for name in graph.inputs}


def _deployed(
    name: str,
    title: str,
    summary: str,
    net: sb.Network,
    checked: Verification,
    data: Dataset,
    folder: Path,
    trained: TrainingRun | None = None,
) -> Deployment:
    """A verified network as C in `folder`, measured on the boards, with its test accuracy.

    trained: the float network that it was quantized from
    """
    compiled = net.compile(folder, sizes=True)
    assert isinstance(compiled, CompiledNetwork)
    page = net.report(verified=checked, saved=compiled).save(folder.with_suffix(".html"))
    accuracy = [] if trained is None else [("float32 model", 100 * trained.accuracy)]
    accuracy.append(("integers", 100 * sb.evaluate(net, data).accuracy))
    memory = [
        ("constants in flash", compiled.memory.constants),
        ("arena in RAM", compiled.memory.arena),
    ]
    for n in compiled.targets:
        sizes = (("flash", n.flash), ("RAM", n.ram), ("stack", n.stack))
        memory += [(f"{n.target}: {what}", size) for what, size in sizes if size is not None]
    return Deployment(
        name,
        title,
        summary,
        accuracy,
        checked.verdicts,
        memory,
        asdict(compiled.tables),
        net.quantization,
        page.name,
    )


def _make_firmware(net: sb.Network, data: Dataset, folder: Path) -> Concordance:
    """The BFP network as firmware: simulated on some images, translated and run on all."""
    built = net.compile(folder, target="npu")
    assert isinstance(built, Firmware)
    firmware = sb.load(built.path)
    images = data.values(data.test_images).numpy().astype(np.float16)
    some = images[:SIMULATED]
    _, simulator = _timed(lambda: sb.simulate(firmware, some))
    sb.concord(firmware, "onnx", folder / "concordant.onnx")
    software = sb.concord(firmware, "torch", folder / "concordant.py").function
    _, took = _timed(lambda: software({firmware.inputs[0].name: images}))
    checked = firmware.verify(some, ("concordant-onnx", "concordant-torch"), available=True)
    return Concordance(
        str(built.path),
        built.program.native,
        built.program.mantissa,
        len(built.program.instructions),
        100 * sb.evaluate(firmware, data).accuracy,
        checked.verdicts,
        (simulator / len(some), took / len(images)),
        firmware.report(verified=checked).save(folder.with_suffix(".html")).name,
    )


def _timed(compute: Callable[[], T]) -> tuple[T, float]:
    """A result, and the seconds that it took."""
    start = time.perf_counter()
    result = compute()
    return result, time.perf_counter() - start


# --- its result ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DemoResult(Reported):
    """All that the demo computed. True where all bits are the same.

    out:          the folder of the files
    runs:         the network in BFP and in float32
    hashes:       of the parameters of the BFP run, by the way of computing it
    spoken:       what the language model says
    not_compared: sentences about what could not be computed another way on this machine
    """

    out: Path
    runs: Mapping[str, TrainingRun]
    hashes: Mapping[str, str]
    plan: MemoryPlan
    deployments: Sequence[Deployment]
    firmware: Concordance
    spoken: Generation
    not_compared: Sequence[str] = ()

    @property
    def page(self) -> Path:
        """The file of the report."""
        return self.out / "report.html"

    @property
    def verdicts(self) -> dict[str, Any]:
        """The comparisons of every model with its reference, by the model's name."""
        found = {deployment.name: deployment.verdicts for deployment in self.deployments}
        return {**found, "the firmware": self.firmware.verdicts}

    @property
    def same_bits(self) -> bool:
        """Whether the BFP run has one hash, the language model says one text, and no backend
        differs that provably may not."""
        one = len(set(self.hashes.values())) == 1 and self.spoken.same_tokens
        return one and all(map(agree, self.verdicts.values()))

    def __bool__(self) -> bool:
        return self.same_bits

    @property
    def unproved(self) -> list[str]:
        """A sentence for everything that the verdict leaves open, and why."""
        return [*self.not_compared, *unproved(self.verdicts)]

    @property
    def verdict(self) -> str:
        """One line: whether all bits are the same, and what was not compared."""
        more = f" ({'; '.join(self.unproved)})" if self.unproved else ""
        return f"same bits: {'yes' if self.same_bits else 'NO'}{more}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "report": str(self.page),
            "runs": {name: run.result.to_dict() for name, run in self.runs.items()},
            "hashes": dict(self.hashes),
            "plan": self.plan.to_dict(),
            "deployments": [deployment.to_dict() for deployment in self.deployments],
            "firmware": self.firmware.to_dict(),
            "spoken": self.spoken.to_dict(),
            "unproved": self.unproved,
            "same_bits": self.same_bits,
        }

    def report(self) -> DemoReport:
        """Tables, hashes and the verdict as text; with curves, options and figures as a page."""
        return self._report

    @cached_property
    def _report(self) -> DemoReport:
        """The report, whose drawings take a while."""
        runs = [
            Run(name, run.config.to_dict(), run.result.to_dict(), read_metrics(run.folder))
            for name, run in self.runs.items()
        ]
        assert self.plan.picture is not None  # it was just made
        said = self.spoken.lines
        return DemoReport(
            "samebits: networks for digits, and a language model, from training to devices",
            "The same network trained twice from the same weights and in the same data order: in "
            "8-bit block floating point, where every result is an exact integer, and in float32. "
            "It, two networks quantized after training, and firmware go to every backend.",
            [
                self._claim(),
                *training_sections(runs),
                same_bits_section(self.hashes),
                plan_section(self.plan.plan, self.plan.picture()),
                *map(deployment_section, self.deployments),
                concordance_section(self.firmware),
                section(*said, title="A language model says"),
            ],
            text=[
                training_text(runs, "Handwritten digits, small convolutional network"),
                same_bits_text(self.hashes),
                *map(deployment_text, self.deployments),
                concordance_text(self.firmware),
                section(*said),
                section(self.verdict),
            ],
        )

    def _claim(self) -> Section:
        """The verdict on top: backends by models, what it leaves open, how to repeat it."""
        if self.same_bits:
            claim = Status("good", "Same bits: yes, on every backend that promises them.")
        else:
            claim = Status(
                "bad", "Same bits: NO. Something differs that may not; it is named below."
            )
        open_ends = [f"{text[:1].upper()}{text[1:]}." for text in self.unproved]
        blocks: list[PageBlock] = [claim, matrix_of(self.verdicts), *map(Paragraph, open_ends)]
        blocks += [Paragraph("To repeat it:"), Command(["samebits demo --out demo-out"])]
        versions = [("samebits", sb.__version__), ("torch", str(torch.__version__))]
        blocks.append(Table(("computed with", "version"), versions))
        return Section("The same bits?", blocks)


@dataclass(frozen=True)
class DemoReport(Report):
    """A page with a text of its own, which leaves out what a terminal has no room for."""

    text: Sequence[Section] = ()

    def __str__(self) -> str:
        return str(Report("", "", self.text))
