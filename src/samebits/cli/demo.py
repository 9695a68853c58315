"""`samebits demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.options import AsJson, Threads
from samebits.cli.output import log_console, print_json, print_table, set_threads

if TYPE_CHECKING:
    from samebits.reports.deployment import Deployment
    from samebits.reports.firmware import Concordance
    from samebits.reports.training import Run
    from samebits.verification.compare import Verdict


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the C and report.html.")] = Path(
        "samebits-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train on handwritten digits, quantize, compile and verify; write report.html.

    The BFP run is repeated within a memory budget, and with the plain PyTorch kernels on one
    thread: its hash must be the same. Its model is exported to C and run on every backend at hand,
    as is a float model with tanh, GELU and sigmoid after quantization, and an LSTM that reads the
    images row by row, quantized gate by gate: no output may differ. (onnxruntime computes these two
    in float32 and is compared for information.) Last, the BFP model becomes firmware of the neural
    processor, which is simulated and translated into software with the same bits.
    """
    from samebits.cli import demo_steps
    from samebits.data import load
    from samebits.files import write_atomically
    from samebits.reports.deployment import deployment_section
    from samebits.reports.firmware import concordance_section
    from samebits.reports.recompute import plan_section
    from samebits.reports.same_bits import same_bits_section
    from samebits.reports.training import training_report

    set_threads(threads)
    data = load("digits")
    runs = demo_steps.training_runs(data, out, seed)
    plan, memory = demo_steps.plan_within(runs, data, out)
    hashes = demo_steps.same_bits_runs(runs, data, out / "plan.json")
    deployments = [
        demo_steps.deploy_bfp(out, data),
        demo_steps.deploy_float(out, data, seed),
        demo_steps.deploy_lstm(out, data, seed),
    ]
    firmware = demo_steps.make_firmware(out, data)
    same = len(set(hashes.values())) == 1 and all(map(_all_equal, deployments))
    same = same and all(v.equal or v.skipped is not None for v in firmware.verdicts)
    report = out / "report.html"
    sections = [
        same_bits_section(hashes),
        plan_section(plan, memory),
        *map(deployment_section, deployments),
        concordance_section(firmware),
    ]
    write_atomically(report, training_report(runs, sections).encode())
    if as_json:
        record = {
            "report": str(report),
            "runs": {run.name: dict(run.result) for run in runs},
            "hashes": hashes,
            "plan": plan.to_dict(),
            "deployments": [
                {
                    "title": d.title,
                    "accuracy": dict(d.accuracy),
                    "memory": dict(d.memory),
                    "tables": dict(d.tables),
                    "verdicts": [v.to_dict() for v in d.verdicts],
                }
                for d in deployments
            ],
            "firmware": {
                **asdict(firmware),
                "speedup": firmware.speedup,
                "verdicts": [v.to_dict() for v in firmware.verdicts],
            },
            "same_bits": same,
        }
        print_json(record)
        raise typer.Exit(0 if same else 1)
    _print_training(runs)
    for name, sha256 in hashes.items():
        print(f"sha256 {sha256} bfp, {name}")
    for deployment in deployments:
        _print_deployment(deployment)
    _print_firmware(firmware)
    print("same bits: yes" if same else "same bits: NO")
    log_console().print(f"report: {report}")
    if not same:
        raise typer.Exit(1)


def _all_equal(deployment: Deployment) -> bool:
    """No output differs; binary32 runtimes count where they provably must agree."""
    compared = [v for v in deployment.verdicts if v.skipped is None]
    return bool(compared) and all(v.equal or v.note for v in compared)


# --- text -------------------------------------------------------------------------------------


def _print_training(runs: list[Run]) -> None:
    from samebits.reports.training import training_rows

    header, rows = training_rows(runs)
    table = Table(title="Handwritten digits, small convolutional network")
    for index, title in enumerate(header[:-1]):
        table.add_column(title, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row[:-1])
    print_table(table)
    for row in rows:
        print(f"sha256 {row[-1]} {row[0]}")  # the last column would not fit a narrow terminal


def _print_verdicts(title: str, verdicts: Sequence[Verdict]) -> None:
    from samebits.reports.deployment import verdict_rows

    table = Table("backend", "differing", "samples", title=title)
    for what, differing, samples, _ in verdict_rows(verdicts):
        table.add_row(Text(what), differing, samples)
    print_table(table)


def _print_deployment(deployment: Deployment) -> None:
    from samebits.reports.deployment import reasons

    _print_verdicts(deployment.title, deployment.verdicts)
    for sentence in reasons(deployment.verdicts):
        print(sentence)
    for name, percent in deployment.accuracy:
        print(f"accuracy {percent:.2f} % {name}")
    memory = dict(deployment.memory)
    print(f"arena {memory['arena in RAM']:,} bytes, constants {memory['constants in flash']:,}")
    t = deployment.tables
    if t["pairs"]:
        print(f"{t['pairs']} transfer functions share {t['tables']} tables, {t['bytes']:,} bytes")


def _print_firmware(firmware: Concordance) -> None:
    _print_verdicts("Firmware and concordant software", firmware.verdicts)
    print(f"accuracy {firmware.accuracy:.2f} % of the firmware, {firmware.program}")
    simulator, software = (1e3 * seconds for seconds in firmware.seconds)
    print(
        f"simulator {simulator:.1f} ms an image, concordant PyTorch {software:.3f} ms: "
        f"{firmware.speedup:,.0f} times faster"
    )
