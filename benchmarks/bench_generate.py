"""Time of a token of a small language model: generated C beside onnxruntime, one thread each.

The network is `gpt` (4 layers, width 128, context 128, bytes), not trained: times do not depend on
weights. onnxruntime runs the same quantized step, its states fed back; the tokens it is given are
those that the C drew. Times are of the processor, not of the clock, so that other load counts less.

    python benchmarks/bench_generate.py --tokens 1000 --out runs/generate.json
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import machine
from samebits.codegen.packaging.generator import write_generator
from samebits.codegen.run.execute import build, execute
from samebits.codegen.run.targets import TARGETS
from samebits.ir.rewrite import simplify
from samebits.ir.steps import step_graph
from samebits.model import Model
from samebits.onnx import to_qdq
from samebits.train import convert
from samebits.train.architectures import gpt, initialise
from samebits.train.deployed.deploy import calibrate
from samebits.train.deployed.export import to_graph
from samebits.verification.generation import Request, request_of

CONTEXT, PROMPT, SEED = 128, b"The ", 0


def network() -> Model:
    """The step graph of the network in BFP."""
    module = gpt(256, CONTEXT)
    initialise(module, SEED)
    model = convert(module)
    tokens = torch.randint(0, 256, (4, CONTEXT), generator=torch.Generator().manual_seed(SEED))
    whole = to_graph(model, calibrate(model, [tokens]), (CONTEXT,))
    return Model("gpt", simplify(step_graph(whole)))


def in_c(model: Model, request: Request, flags: list[str]) -> tuple[list[int], float]:
    """The tokens, and seconds of the processor for each of them and of the prompt."""
    sizes = len(request.prompt), request.count
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "package"
        interface = write_generator(model.integer, folder, *sizes, request.sampling, request.seed)
        target = TARGETS["c"].with_flags(*flags)
        program = build(folder, target, Path(work) / "build", interface)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        (tokens,) = execute(program, [np.array(request.prompt, np.int64)])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return tokens.tolist(), seconds / sum(sizes)


def in_onnxruntime(model: Model, tokens: list[int]) -> float:
    """Seconds of the processor for each token."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # it tells for every token that caches are copied
    graph = model.real
    session = onnxruntime.InferenceSession(to_qdq(graph, "float").SerializeToString(), options)
    states: list[Any] = [
        np.zeros(graph.values[s.input].shape, graph.values[s.input].dtype) for s in graph.states
    ]
    began = time.process_time()
    for token in tokens:
        given = [np.full((1, 1), token, np.int64), *states]
        _, *states = session.run(None, dict(zip(graph.inputs, given, strict=True)))
    return (time.process_time() - began) / len(tokens)


def main() -> None:
    """Print the times and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("runs/generate.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = network()
    request = request_of(model, [*PROMPT], given.tokens, SEED, 40, 1.0)
    found: dict[str, float] = {}
    tokens: list[int] = []
    for flags in (["-O2"], ["-O3", "-march=native"]):
        drawn, found[f"C {' '.join(flags)}"] = in_c(model, request, flags)
        assert not tokens or drawn == tokens
        tokens = drawn
    found["onnxruntime"] = in_onnxruntime(model, [*PROMPT, *tokens])
    for name, seconds in found.items():
        print(f"{name}: {1e3 * seconds:.2f} ms a token")
    machine.write_record(given.out, tokens=given.tokens, seconds=found)


if __name__ == "__main__":
    main()
