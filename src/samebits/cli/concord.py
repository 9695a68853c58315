"""`samebits concord`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.options import AsJson
from samebits.cli.output import print_json
from samebits.errors import InputError


def concord_command(
    program: Annotated[Path, typer.Argument(help="A .nnp program; its memory image beside it.")],
    to: Annotated[str, typer.Option(help="torch, onnx or tensorflow.")],
    out: Annotated[Path, typer.Option(help="The .py or .onnx file; data of a .py goes beside it.")],
    as_json: AsJson = False,
) -> None:
    """Translate firmware into software that computes the same bits."""
    from samebits.npu.concord.translate import translate
    from samebits.npu.machine.image import read_program

    image = program.with_suffix(".safetensors")
    if to == "torch" and out.with_suffix(image.suffix).resolve() == image.resolve():
        raise InputError(
            f"--out {out}: expected a name whose data is not the program's memory image, found "
            f"{image} for both; choose another name or folder"
        )
    files = translate(*read_program(program), to, out)
    if as_json:
        print_json({"program": str(program), "to": to, "files": [str(file) for file in files]})
        return
    for file in files:
        print(f"written: {file} ({file.stat().st_size:,} bytes)")
