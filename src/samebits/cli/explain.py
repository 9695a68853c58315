"""`samebits explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.cli.options import AsJson, Quiet
from samebits.cli.output import print_json, working


def explain_command(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="What stands under an error [default: a list of all topics]."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Explain an error: what it means, its commonest causes, and what to do."""
    from samebits.explanations import explain, explanations  # which imports no torch

    with working(quiet, as_json):
        chosen = list(explanations().values()) if topic is None else [explain(topic)]
    if as_json and topic is None:
        print_json({each.topic: each.title for each in chosen})
    elif as_json:
        print_json(chosen[0].to_dict())
    elif topic is None:
        for each in chosen:
            print(f"{each.topic:<22}{each.title}")
    else:
        print(chosen[0], end="")
