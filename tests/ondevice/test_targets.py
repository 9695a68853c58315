"""The forms of training kernels for Cortex-M are taken by no processor that lacks their words."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from samebits import csrc

FOLDER = Path(csrc.__file__).parent
COMPILER = "arm-none-eabi-gcc"


@pytest.mark.parametrize("name", ["train_products", "train_weights", "train_inputs"])
@pytest.mark.parametrize(
    "flags",
    [
        ("-mcpu=cortex-a7", "-marm"),
        ("-mcpu=cortex-r5", "-marm"),
        ("-mcpu=cortex-m4", "-mno-unaligned-access"),
    ],
)
def test_other_processors_compile_the_portable_form(tmp_path, name, flags):
    if shutil.which(COMPILER) is None:
        pytest.skip(f"needs {COMPILER}")
    folders = [f"-I{FOLDER / part}" for part in ("", "ondevice", "training")]
    command = [COMPILER, "-std=c99", "-ffreestanding", "-O2", "-Wall", "-Wextra", "-Werror"]
    source = FOLDER / "ondevice" / f"{name}.c"
    subprocess.run([*command, *flags, *folders, "-c", source, "-o", tmp_path / "a.o"], check=True)
