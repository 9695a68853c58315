"""`samebits simulate`."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.options import AsJson
from samebits.cli.output import print_json

if TYPE_CHECKING:
    from samebits.npu.simulator.simulate import Result


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
    as_json: AsJson = False,
) -> None:
    """Execute a program of the neural processor instruction by instruction."""
    from samebits.files import read_archive, write_atomically
    from samebits.model import load_firmware
    from samebits.npu.simulator.simulate import simulate
    from samebits.verification.backends.npu import chain_values
    from samebits.verification.trace import to_record

    firmware = load_firmware(program)
    arrays = read_archive(inputs)
    result = simulate(firmware.program, firmware.image, arrays, keep_values=trace is not None)
    write_atomically(out, _archive(result))
    if trace is not None:
        runs = [chain_values(run) for run in result.trace]
        record = to_record(firmware, firmware.source, "npu", runs)
        write_atomically(trace, (json.dumps(record) + "\n").encode())
    time = result.time
    if as_json:
        outputs = {name: list(array.shape) for name, array in result.outputs.items()}
        record = {"program": firmware.source, "out": str(out), "outputs": outputs}
        record |= {"scalars": list(result.scalars), "cycles": time.cycles}
        record |= {"tile_passes": time.passes, "utilisation": time.utilisation}
        print_json({**record, "chains": [asdict(chain) for chain in time.chains]})
        return
    for name, array in result.outputs.items():
        print(f"{name}: {list(array.shape)}")
    print(f"about {time.cycles:,} cycles a sample, {time.utilisation:.1%} of the tile engines used")
    print(f"written: {out}")


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
