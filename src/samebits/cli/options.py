"""Options that several commands share, each with one name, one range and one text of help."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]
Arch = Annotated[
    str | None,
    typer.Option(help="Needed for a model of a module:callable of your own: its name."),
]
Samples = Annotated[str, typer.Option(help="An .npz archive of samples, or random:N.")]
SampleSeed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of random:N.")]
Data = Annotated[str, typer.Option(help="digits, a folder of images or WAV audio, .npz or .txt.")]
Shards = Annotated[
    int | None, typer.Option(min=1, help="Shards per batch [default: one per 32 samples].")
]
