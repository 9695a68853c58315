"""`samebits device`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import Threads
from samebits.cli.output import log_console, set_threads


def device_command(
    out: Annotated[Path | None, typer.Option(help="Write the device file there.")] = None,
    threads: Threads = None,
) -> None:
    """Measure this machine: a device file (TOML) for samebits plan and samebits train."""
    from samebits.files import write_atomically
    from samebits.recompute.plan.cost import device_text
    from samebits.recompute.plan.measure import measure_device

    set_threads(threads)
    text = device_text(measure_device())
    if out is None:
        print(text, end="")
        return
    write_atomically(out, text.encode())
    log_console().print(f"{out}: written; give it to samebits plan --device or train --plan-device")
