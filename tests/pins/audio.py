"""Log-mel features of a generated recording, in numpy and in C."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pins.quantization import c_compiler
from pins.registry import Pins, digest, route
from pins.samples import recording
from samebits.codegen.packaging.audio import write_audio
from samebits.codegen.run.execute import build, execute
from samebits.codegen.run.interface import Interface
from samebits.data.audio import LogMel, log_mel, short_codes
from samebits.ir import Value

SETTINGS = {
    "8 kHz": LogMel(),
    "16 kHz": LogMel.at(16000),
    "padded": LogMel(8000, 200, 80, 512, 20, 0, 3000),
}
COUNT = 6000


@route("audio")
def features() -> Pins:
    samples = recording(80, COUNT)
    found = {"recording": digest(samples)}
    for name, settings in SETTINGS.items():
        codes = log_mel(samples, settings)
        found[name] = digest(codes)
        found[f"{name}, 8 bits"] = digest(short_codes(codes))
    return found


@route("audio-c")
def features_in_c() -> Pins:
    target = c_compiler().target
    samples = recording(80, COUNT)
    found = {}
    for name, settings in SETTINGS.items():
        shape = (1, settings.frames(COUNT), settings.mels)
        ports = (Value("x", "int16", (1, COUNT)),), (Value("y", "int16", shape),)
        with tempfile.TemporaryDirectory() as folder:
            package, work = Path(folder) / "package", Path(folder) / "work"
            write_audio(settings, package)
            program = build(package, target, work, Interface("audio", *ports))
            (codes,) = execute(program, [samples[None]])
        found[name] = digest(codes[0])
    return found
