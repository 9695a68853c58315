"""`samebits doctor`."""

from __future__ import annotations

import typer

from samebits.cli.options import AsJson, Quiet
from samebits.cli.output import show, working


def doctor_command(quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Examine this machine: versions, compiler, kernels, backends, and a self-test of known bits.

    Says what is missing and what installs it. Exit code 1 where the self-test differs or cannot be
    run. The native kernels are compiled if they never were. Give its --json with a report of a bug.
    """
    with working(quiet, as_json):
        from samebits.checkup import doctor

        result = doctor()
    show(result, as_json)
    raise typer.Exit(0 if result else 1)
