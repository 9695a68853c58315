"""The `samebits` command line: one module per command, torch imported only where one needs it.

Exit codes: 0 done, 1 a check failed, 2 bad usage or bad input.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

import typer

from samebits.cli.compile import compile_command
from samebits.cli.concord import concord_command
from samebits.cli.demo import demo_command
from samebits.cli.device import device_command
from samebits.cli.eval import eval_command
from samebits.cli.inspect import inspect_command
from samebits.cli.plan import plan_command
from samebits.cli.quantize import quantize_command
from samebits.cli.simulate import simulate_command
from samebits.cli.trace import audit_command, trace_command
from samebits.cli.train import train_command
from samebits.cli.verify import verify_command
from samebits.errors import SamebitsError

__all__ = ["app", "main"]

app = typer.Typer(
    name="samebits",
    help="Low-precision neural networks that compute the same bits everywhere.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    demo_command,
    train_command,
    eval_command,
    plan_command,
    device_command,
    quantize_command,
    compile_command,
    simulate_command,
    concord_command,
    verify_command,
    trace_command,
    audit_command,
    inspect_command,
):
    app.command(command.__name__.removesuffix("_command"))(command)


@app.callback()
def samebits() -> None:
    """Low-precision neural networks that compute the same bits everywhere."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always raises SystemExit. Errors meant for users have no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        app(args=None if arguments is None else list(arguments), prog_name="samebits")
    except SamebitsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: {error}; check the path and its permissions", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print("error: out of memory; lower --batch or use a smaller data set", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
