"""`samebits explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.cli.options import AsJson, Quiet
from samebits.cli.output import print_json, working


def explain_command(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE", help="The code below an error [default: a list of all codes]."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Explain an error: what it means, its commonest causes, and what to do."""
    from samebits.explanations import explain, explanations  # which imports no torch

    with working(quiet, as_json):
        chosen = list(explanations().values()) if code is None else [explain(code)]
    if as_json and code is None:
        print_json({each.code: each.title for each in chosen})
    elif as_json:
        print_json(chosen[0].to_dict())
    elif code is None:
        for each in chosen:
            print(f"{each.code:<22}{each.title}")
    else:
        print(chosen[0], end="")
