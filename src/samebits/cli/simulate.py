"""`samebits simulate`."""

from __future__ import annotations

import base64
import io
import json
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits.cli.output import print_json
from samebits.errors import InputError

if TYPE_CHECKING:
    from samebits.npu.simulate import Result, Written


def simulate_command(
    program: Annotated[
        Path, typer.Argument(help="A .nnp program, or a compiled folder with one in it.")
    ],
    inputs: Annotated[
        Path, typer.Option(help="An .npz archive: an array for each input of the program.")
    ],
    out: Annotated[Path, typer.Option(help="The outputs, an .npz archive.")],
    trace: Annotated[
        Path | None,
        typer.Option(help="Write what every chain wrote, for `samebits audit`: a JSON file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Execute a program of the neural processor instruction by instruction."""
    from samebits.npu.image import read_program
    from samebits.npu.simulate import simulate
    from samebits.train.checkpoint import write_atomically
    from samebits.verify.inputs import read_archive

    path = _program_file(program)
    firmware, image = read_program(path)
    arrays = read_archive(inputs)
    result = simulate(firmware, image, arrays, keep_values=trace is not None)
    write_atomically(out, _archive(result))
    if trace is not None:
        record = _trace_record(str(path), result)
        write_atomically(trace, (json.dumps(record) + "\n").encode())
    time = result.time
    if as_json:
        outputs = {name: list(array.shape) for name, array in result.outputs.items()}
        record = {"program": str(path), "out": str(out), "outputs": outputs}
        record |= {"scalars": list(result.scalars), "cycles": time.cycles}
        record |= {"tile_passes": time.passes, "utilisation": time.utilisation}
        print_json({**record, "chains": [asdict(chain) for chain in time.chains]})
        return
    for name, array in result.outputs.items():
        print(f"{name}: {list(array.shape)}")
    print(f"about {time.cycles:,} cycles a sample, {time.utilisation:.1%} of the tile engines used")
    print(f"written: {out}")


def _program_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.nnp"))
    if len(found) != 1:
        names = ", ".join(repr(file.name) for file in found[:5]) or "none"
        raise InputError(
            f"{path}: expected one .nnp program in the folder, found {names}; name the program"
        )
    return found[0]


def _archive(result: Result) -> bytes:
    """The outputs as an .npz archive, the same bytes whenever it is written."""
    import numpy as np

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in result.outputs.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return stream.getvalue()


def _trace_record(source: str, result: Result) -> dict[str, Any]:
    """The format of samebits.verify.trace: a layer is one execution of a chain.

    Its codes are the 16 bits of binary16 numbers.
    """
    from samebits.verify.trace import FORMAT

    passes: dict[int, int] = {}
    layers = []
    for written in result.trace[0]:
        assert written.values is not None
        passes[written.line] = passes.get(written.line, 0) + 1
        name = f"line {written.line}, execution {passes[written.line]}"
        shape = list(written.values.shape)
        layers.append({"name": name, "op": "chain", "dtype": "uint16", "shape": shape})
    return {
        "format": FORMAT,
        "model": source,
        "backend": "simulator",
        "layers": layers,
        "runs": [[f"{written.hash:016x}" for written in run] for run in result.trace],
        "codes": [[_packed(written) for written in run] for run in result.trace],
    }


def _packed(written: Written) -> str:
    assert written.values is not None
    little = written.values.astype("<f2").tobytes()
    return base64.b64encode(zlib.compress(little, 6)).decode()
