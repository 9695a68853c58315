"""A script, run by a Python that has a runtime: a file's tensors for one input after the other.

    child.py RUNTIME FOLDER, or child.py RUNTIME to say its version

FOLDER holds model.tflite, `wanted.npy` (numbers of tensors) and `input0.npy`, ... of all runs along
axis 0. `found.npz` takes the wanted tensors of every run, by their numbers. What a file keeps from
one run to the next is kept. The script needs numpy and the runtime, nothing of this project.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = {
    "tflm": "tflite-micro",
    "litert": "ai-edge-litert",
    "litert-reference": "ai-edge-litert",
    "litert-xnnpack": "ai-edge-litert",
}
RESOLVERS = {
    "litert": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "litert-reference": "BUILTIN_REF",
    "litert-xnnpack": "AUTO",
}
ARENA = 64 << 20  # bytes for the tensors of a network
Run = Callable[[Sequence[Any]], Any]


def micro(data: bytes, wanted: Sequence[int]) -> Run:
    """TensorFlow Lite Micro, which keeps every tensor."""
    from tflite_micro import runtime

    kept = runtime.InterpreterConfig.kPreserveAllTensors
    interpreter = runtime.Interpreter.from_bytes(
        data, arena_size=ARENA + 4 * len(data), intrepreter_config=kept
    )

    def run(given: Sequence[Any]) -> Any:
        for index, array in enumerate(given):
            interpreter.set_input(array, index)
        interpreter.invoke()
        return [np.array(interpreter.GetTensor(number, 0)["tensor_data"]) for number in wanted]

    return run


def lite(runtime: str, data: bytes, wanted: Sequence[int]) -> Run:
    """LiteRT; XNNPACK keeps no tensor but the outputs."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=data,
        num_threads=1,
        experimental_op_resolver_type=getattr(OpResolverType, RESOLVERS[runtime]),
        experimental_preserve_all_tensors=runtime != "litert-xnnpack",
    )
    interpreter.allocate_tensors()
    details = interpreter.get_input_details()

    def run(given: Sequence[Any]) -> Any:
        for detail, array in zip(details, given, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(number) for number in wanted]

    return run


def main(runtime: str, *folders: str) -> None:
    """See the module."""
    if not folders:
        os.write(1, importlib.metadata.version(PACKAGES[runtime]).encode())
        return
    folder = Path(folders[0])
    data = (folder / "model.tflite").read_bytes()
    wanted = [int(number) for number in np.load(folder / "wanted.npy")]
    count = len(list(folder.glob("input*.npy")))
    inputs = [np.load(folder / f"input{index}.npy") for index in range(count)]
    run = micro(data, wanted) if runtime == "tflm" else lite(runtime, data, wanted)
    found: list[list[Any]] = [[] for _ in wanted]
    for index in range(len(inputs[0])):
        for kept, array in zip(found, run([array[index] for array in inputs]), strict=True):
            kept.append(array)
    arrays: dict[str, Any] = {
        str(number): np.stack(kept) for number, kept in zip(wanted, found, strict=True)
    }
    np.savez(folder / "found.npz", **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
