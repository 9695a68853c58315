"""`samebits device`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import AsJson, Quiet, Threads
from samebits.cli.output import show, working


def device_command(
    out: Annotated[Path | None, typer.Option(help="Write the device file there too.")] = None,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure this machine: a device file (TOML) for samebits plan and samebits train."""
    with working(quiet, as_json):
        from samebits import planning

        result = planning.measure_device(threads=threads)
        if out is not None:
            result.save(out)
    show(result, as_json, *([] if out is None else [out]))
