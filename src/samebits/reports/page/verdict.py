"""The verdict of a page: which backends computed what, and whether all of it is the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from samebits.recipes.reading import as_arguments
from samebits.reports.deployment import BACKENDS, listed, reasons
from samebits.reports.html import Command, Fold, PageBlock, Paragraph, Section, Status, Table
from samebits.reports.report import printable
from samebits.verification.compare import Verdict
from samebits.verification.registry import known_backends

TITLE = "The same bits?"


@dataclass(frozen=True)
class BackendsCompared:
    """A verification. reference: the backend that defines the bits; inputs: as the command line
    names the samples, "" for what it cannot name; reading: the options of reading them; seed: of
    random:N."""

    reference: str
    samples: int
    inputs: str
    verdicts: Sequence[Verdict]
    reading: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


def verdict_section(
    source: str, kind: str, sha256: str, compared: BackendsCompared | None
) -> Section:
    """The verdict, the backends, and the commands that repeat it."""
    blocks: list[PageBlock] = []
    if compared is None:
        blocks += _nothing(source, kind)
    else:
        blocks.append(Status(*verdict_sentence(compared)))
        blocks += _backends(compared)
        blocks += map(Paragraph, reasons(compared.verdicts))
        blocks += _again(source, compared)
    rows = [("samebits", version("samebits")), (f"SHA-256 of the {kind}", sha256)]
    blocks.append(Table(("computed with", "is"), rows, code=("is",)))
    return Section(TITLE, blocks)


def _backends(compared: BackendsCompared) -> list[PageBlock]:
    """A row for every backend that was compared, and why others were not."""
    rows = [
        (
            BACKENDS.get(v.backend, v.backend),
            f"{v.differing:,} of {v.total:,}",
            f"{v.samples:,} of {v.sample_count:,}",
            v.sha256[:16],
        )
        for v in compared.verdicts
        if v.skipped is None
    ]
    reference = BACKENDS.get(compared.reference, compared.reference)
    columns = ("backend", "outputs that differ", "samples with one", "SHA-256 of the outputs")
    caption = f"against the {reference}, which defines the bits"
    blocks: list[PageBlock] = [Table(columns, rows, caption, code=columns[3:])] if rows else []
    skipped = [
        (BACKENDS.get(v.backend, v.backend), printable(v.skipped))
        for v in compared.verdicts
        if v.skipped is not None
    ]
    if skipped:
        blocks.append(Fold(f"Not compared: {len(skipped)}", [Table(("backend", "why"), skipped)]))
    return blocks


def verdict_sentence(compared: BackendsCompared) -> tuple[str, str]:
    """The state (good, bad, open) and the sentence."""
    done = [v for v in compared.verdicts if v.skipped is None]
    if not done:
        return "open", "Nothing was compared: none of the backends could run here."
    names = listed([compared.reference, *(v.backend for v in done)])
    outputs = f"{done[0].total:,} outputs of {compared.samples:,} samples"
    wrong = [v for v in done if v.differing and not v.note]
    may = [v for v in done if v.differing and v.note]
    if wrong:
        differing = listed([f"{v.backend} in {v.differing:,} of {v.total:,}" for v in wrong])
        return "bad", f"Not the same bits: {differing} outputs differ."
    if may:
        same = [compared.reference, *(v.backend for v in done if not v.differing)]
        apart = listed([f"{v.backend} in {v.differing:,} outputs" for v in may])
        count = f"{len(same)} backends" if len(same) > 1 else "one backend"
        state = "good" if len(same) > 1 else "open"
        return state, f"{count} computed the same {outputs}; {apart} may differ, and does."
    return "good", f"The same bits: {names} computed {outputs}, and all are equal."


def _nothing(source: str, kind: str) -> list[PageBlock]:
    """The sentence of a page without a comparison, and how to get one."""
    named = Path(source).exists()
    model = printable(shlex.quote(source))
    if kind == "float network":
        command = f"samebits quantize {model} --data X.npz --out Q.onnx"
        return [
            Status("open", "A float network has no bits to compare: they depend on the machine."),
            Paragraph("Quantized, it computes the same integers on every backend:"),
            Command([command if named else "sb.quantize(network, samples)"]),
        ]
    command = f"samebits report {model} --data random:100 --out page.html"
    return [
        Status("open", "Nothing was compared for this page."),
        Paragraph("To compare backends and write the page again:"),
        Command([command if named else 'network.report("random:100").save("page.html")']),
    ]


def _again(source: str, compared: BackendsCompared) -> list[PageBlock]:
    """The command that repeats a comparison; for what has no file, the call. Left out is what only
    `ship` compares."""
    inputs = compared.inputs
    known = known_backends()
    names = [v.backend for v in compared.verdicts if v.skipped is None and v.backend in known]
    spoken = all("," not in name for name in compared.reading.get("target", ()))
    if not inputs or not Path(source).exists() or not spoken:
        given = repr(inputs) if inputs else "samples"
        reading = dict(compared.reading)
        prepared = reading.pop("prepared", False)
        if reading:
            given = f"sb.read({given}, {', '.join(f'{n}={v!r}' for n, v in reading.items())})"
        given = f"sb.prepared({given})" if prepared else given
        more = f", seed={compared.seed}" if compared.seed else ""
        call = f"network.verify({given}, {names!r}{more})"
        return [Paragraph("To repeat it from Python:"), Command([printable(call)])]
    command = ["samebits verify", shlex.quote(source), "--data", shlex.quote(inputs)]
    command += ["--backends", ",".join(names)] if names else []
    command += map(shlex.quote, as_arguments(compared.reading))
    command += ["--seed", str(compared.seed)] if compared.seed else []
    return [Paragraph("To repeat it:"), Command([printable(" ".join(command))])]
