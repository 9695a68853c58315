"""The `samebits` command line: one module per command, each a call of `samebits.api` and printing.

Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from samebits.cli.compare import compare_command
from samebits.cli.compile import compile_command
from samebits.cli.concord import concord_command
from samebits.cli.demo import demo_command
from samebits.cli.device import device_command
from samebits.cli.doctor import doctor_command
from samebits.cli.eval import eval_command
from samebits.cli.explain import explain_command
from samebits.cli.generate import generate_command
from samebits.cli.inspect import inspect_command
from samebits.cli.messages import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    Interrupted,
    show_warning,
    told,
)
from samebits.cli.output import print_json
from samebits.cli.plan import plan_command
from samebits.cli.predict import predict_command
from samebits.cli.profile import profile_command
from samebits.cli.quantize import quantize_command
from samebits.cli.report import report_command
from samebits.cli.ship import ship_command
from samebits.cli.simulate import simulate_command
from samebits.cli.trace import audit_command, trace_command
from samebits.cli.train import train_command
from samebits.cli.verify import verify_command
from samebits.errors import FidelityError, PackageError, SamebitsError, visible

__all__ = ["app", "main"]

app = typer.Typer(
    name="samebits",
    help="Low-precision neural networks that compute the same bits everywhere.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo_command,
    train_command,
    compare_command,
    eval_command,
    predict_command,
    plan_command,
    device_command,
    quantize_command,
    compile_command,
    ship_command,
    profile_command,
    generate_command,
    simulate_command,
    concord_command,
    verify_command,
    trace_command,
    audit_command,
    inspect_command,
    doctor_command,
    explain_command,
    report_command,
):
    app.command(command.__name__.removesuffix("_command"))(command)


def _print_versions(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # torch itself would take seconds

        print(f"samebits {version('samebits')}, torch {version('torch')}")
        raise typer.Exit


@app.callback()
def samebits(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the versions of samebits and torch, and exit.",
        ),
    ] = False,
) -> None:
    """Low-precision neural networks that compute the same bits everywhere."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always raises SystemExit. Errors meant for users have no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    before = warnings.showwarning
    warnings.showwarning = show_warning
    try:
        sys.exit(_run(arguments))
    finally:
        warnings.showwarning = before


def _run(arguments: Sequence[str] | None) -> int:
    """The exit code of a command; what went wrong is told on stderr."""
    try:
        code = app(
            args=None if arguments is None else list(arguments),
            prog_name="samebits",
            standalone_mode=False,
        )
        if code == INTERRUPTED:
            raise KeyboardInterrupt  # which typer has made an exit code
        _written()
        return code or 0
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Interrupted as interrupted:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # no command asks for help, and gets it
            asked: Any = error
            print(asked.format_message(), file=sys.stderr)
            return BAD_INPUT
        found = told(error)
        if found is None:
            raise
        text = f"error: {found['error']}\nexplain: samebits explain {found['explain']}"
        with contextlib.suppress(OSError):  # where stderr itself is a file on a full disk
            print(visible(text), file=sys.stderr)
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            with contextlib.suppress(OSError):
                print_json(found)
        return FAILED if isinstance(error, FidelityError | PackageError) else BAD_INPUT


def _written() -> None:
    """Write out what was printed. SamebitsError where that fails: Python itself would only say
    that it ignores it, once no exit code can be chosen any more."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is tried again
        raise SamebitsError(
            f"standard output: cannot be written ({error.strerror or error}); give it another "
            "place, or read what the command has written in its files"
        ) from error
