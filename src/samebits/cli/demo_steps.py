"""The computations of `samebits demo`, step by step."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.status import Status
from torch import nn

from samebits import kernels
from samebits.cli.output import RunProgress, log_console
from samebits.codegen import write_package
from samebits.codegen.lowering.lower import table_bytes
from samebits.codegen.run.requirements import BOARDS, requirements
from samebits.data.dataset import Dataset
from samebits.ir import Graph
from samebits.ir.integer.transfer import transfer_tables
from samebits.ir.rewrite import simplify
from samebits.model import ONNX_FILE, Model
from samebits.model import load as load_model
from samebits.npu.compiler.lower import lower_real_graph
from samebits.npu.concord.translate import load_concordant, translate
from samebits.npu.machine.image import write_program
from samebits.npu.simulator.simulate import simulate
from samebits.onnx import save_qdq
from samebits.pytorch import import_module
from samebits.quantization import quantize_graph, quantize_recurrent
from samebits.recompute.plan.cost import find_device
from samebits.recompute.plan.plan import Plan, write_plan
from samebits.recompute.training import Planner, architecture_network
from samebits.reports.deployment import Deployment
from samebits.reports.firmware import Concordance
from samebits.reports.recompute import memory_picture
from samebits.reports.training import Run
from samebits.train.architectures import build
from samebits.train.run.config import NUMERICS, TrainConfig
from samebits.train.run.loop import train
from samebits.train.run.record import read_metrics
from samebits.verification.accuracy import (
    correct,
    firmware_images,
    float_outputs,
    image_codes,
    images,
    step_codes,
    streamed,
)
from samebits.verification.backend import Array
from samebits.verification.backends.concordant import Concordant
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.compare import Verdict, compare
from samebits.verification.run import verify_model

EPOCHS = 5
SMOOTH_EPOCHS = 10
LR = 0.2  # of the float networks
LSTM_EPOCHS = 15
CALIBRATION = 256
STREAMED = 20  # images whose steps every backend computes
NATIVE, SIMULATED = 16, 50  # dimension of the neural processor, images through its simulator
BACKENDS = (
    *("torch", "c", "cortex-m0", "cortex-m3", "cortex-m55"),
    *("onnxruntime", "onnxruntime-optimized", "onnxruntime-float", "onnxruntime-integer"),
)


# --- training ---------------------------------------------------------------------------------


def _config(numerics: str, seed: int, arch: str = "cnn", **options: Any) -> TrainConfig:
    return TrainConfig(
        **{
            "data": "digits",
            "arch": arch,
            "numerics": numerics,
            "epochs": EPOCHS,
            "batch": 64,
            "seed": seed,
            **options,
        }
    )


def training_runs(data: Dataset, out: Path, seed: int) -> list[Run]:
    """The same network in BFP and in float32."""
    runs = []
    for numerics in NUMERICS:
        config, folder = _config(numerics, seed), out / numerics
        with RunProgress(f"cnn {numerics}") as reporter:
            result = train(config, data, folder, overwrite=True, reporter=reporter)
        runs.append(Run(numerics, config.to_dict(), result.to_dict(), read_metrics(folder)))
    return runs


def plan_within(runs: list[Run], data: Dataset, out: Path) -> tuple[Plan, bytes]:
    """A plan for the BFP run of a budget half-way to the smallest, left in `out`; its picture."""
    config, device = _bfp_config(runs), find_device("laptop-cpu")
    _, network = architecture_network(config, data.input_shape, data.classes)
    local = Planner(config, device).plan(network)
    plan = Planner(config, device, (local.smallest + local.store_all) // 2).plan(network)
    write_plan(out / "plan.json", plan)
    return plan, memory_picture(network, plan, device)


def same_bits_runs(runs: list[Run], data: Dataset, plan: Path) -> dict[str, str]:
    """Hashes of the BFP run as it was computed, once more by a plan and with other kernels."""
    config, threads = _bfp_config(runs), torch.get_num_threads()
    stored = next(str(run.result["sha256"]) for run in runs if run.name == "bfp")
    native = f"{kernels.realisation()} kernels, {threads} threads"
    with tempfile.TemporaryDirectory() as work:
        planner = Planner(config, find_device("laptop-cpu"), file=plan)
        with RunProgress("cnn bfp, within a memory budget") as reporter:
            planned = train(config, data, Path(work), reporter=reporter, planner=planner)
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as work,
        kernels.use("eager"),
        RunProgress("cnn bfp, PyTorch kernels") as reporter,
    ):
        again = train(config, data, Path(work), reporter=reporter)
    torch.set_num_threads(threads)
    return {
        native: stored,
        f"{native}, recomputed within a memory budget": planned.sha256,
        "PyTorch kernels, 1 thread": again.sha256,
    }


def _bfp_config(runs: list[Run]) -> TrainConfig:
    return TrainConfig(**dict(next(run.config for run in runs if run.name == "bfp")))


# --- deployment -------------------------------------------------------------------------------


def deploy_bfp(out: Path, data: Dataset) -> Deployment:
    """The BFP model: exported, compiled, run on every backend on the whole test set."""
    model = load_model(out / "bfp")
    return _deployment(
        "From training to C",
        "The network trained in BFP, with its exponents frozen, exported and compiled to C99 "
        "without floating point. Every backend computes the logits of the whole test set.",
        model,
        data,
        out / "c-bfp",
        ("training", *BACKENDS),
        [],
        (),
    )


def _float_network(
    arch: str, epochs: int, out: Path, data: Dataset, seed: int
) -> tuple[nn.Module, Graph, list[dict[str, Array]]]:
    """An architecture trained in float32, its graph, and images to calibrate it with."""
    config = _config("float32", seed, arch, epochs=epochs, lr=LR)
    module = build(arch, data.input_shape, data.classes)
    with RunProgress(f"{arch} float32") as reporter:
        train(config, data, out / arch, model=module, overwrite=True, reporter=reporter)
    graph = simplify(import_module(module, (torch.zeros(1, *data.input_shape),)))
    name = graph.inputs[0]
    return module, graph, [{name: x[None]} for x in images(data, "train", CALIBRATION)]


def deploy_float(out: Path, data: Dataset, seed: int) -> Deployment:
    """A float model with tanh, GELU and sigmoid: trained, imported, quantized, compiled."""
    _, graph, samples = _float_network("smooth", SMOOTH_EPOCHS, out, data, seed)
    with Status("calibrating", console=log_console()):
        quantized, report = quantize_graph(graph, samples)
    save_qdq(quantized, out / "smooth-int8.onnx")
    float_percent = 100 * correct(float_outputs(graph, data), data) / len(data.test_labels)
    return _deployment(
        "From a float PyTorch model to C",
        "A float32 network with tanh, GELU and sigmoid, imported from PyTorch, quantized to 8 bits "
        f"after training with {CALIBRATION} images. Each function between two quantized layers is "
        "one table lookup; every entry is correctly rounded.",
        Model("smooth-int8.onnx", quantized),
        data,
        out / "c-smooth",
        BACKENDS,
        [("float32 model", float_percent)],
        tuple(report.to_dict()["tensors"]),
    )


def deploy_lstm(out: Path, data: Dataset, seed: int) -> Deployment:
    """A float LSTM over the rows of the images: trained, quantized gate by gate, compiled."""
    module, graph, samples = _float_network("lstm", LSTM_EPOCHS, out, data, seed)
    with Status("calibrating", console=log_console()):
        quantized, _ = quantize_recurrent(graph, samples)
    save_qdq(quantized, out / "lstm-int8.onnx")
    with torch.no_grad():
        logits = module.eval()(torch.from_numpy(images(data, "test"))).numpy()
    float_percent = 100 * correct([logits], data) / len(data.test_labels)
    return _deployment(
        "From a float LSTM to C",
        "Two LSTM layers of 64 cells that read the images row by row, trained in float32 and "
        "quantized gate by gate to 8 bits with 16-bit gates and cells. The C takes one row at a "
        "time and keeps the states between calls. The accuracy is that of the whole test set; "
        f"every backend computes all steps of its first {STREAMED} images, states included.",
        Model("lstm-int8.onnx", quantized),
        data,
        out / "c-lstm",
        BACKENDS,
        [("float32 model", float_percent)],
        (),
    )


def _deployment(
    title: str,
    summary: str,
    model: Model,
    data: Dataset,
    folder: Path,
    backends: tuple[str, ...],
    accuracy: list[tuple[str, float]],
    layers: tuple[Any, ...],
) -> Deployment:
    """Compile a model into `folder`, run it on every backend and measure it on the boards.

    A model with states is verified on the steps of the first STREAMED images, any other on the
    whole test set; `accuracy` and `layers` are rows that the caller knows already.
    """
    with Status("reference", console=log_console()) as status:
        if model.integer.states:
            torch = PyTorch()
            steps = step_codes(model, data)
            outputs = streamed(model.integer, steps, lambda codes: torch.run(model, codes))[1]
            some = [codes[:STREAMED] for codes in steps]
            codes = streamed(model.integer, some, lambda codes: torch.run(model, codes))[0]
        else:
            codes = image_codes(model, data)
        expected, verdicts = verify_model(model, codes, backends, started=status.update)
        status.update("sizes")
        needs = [requirements(model.integer, board) for board in BOARDS]
    package = write_package(model.integer, folder, vectors=[c[:16] for c in codes])
    save_qdq(model.real, folder / ONNX_FILE)
    if not model.integer.states:
        outputs = expected
    percent = 100 * correct(outputs, data) / len(data.test_labels)
    memory = [
        ("constants in flash", package.constants),
        ("arena in RAM", package.arena),
        ("scratch in RAM", package.scratch),
    ]
    for n in needs:
        for what, count in (("flash", n.flash), ("RAM", n.ram), ("stack", n.stack)):
            if count is not None:
                memory.append((f"{n.target}: {what}", count))
    return Deployment(
        title,
        summary,
        [*accuracy, ("integers, on every backend without a difference", percent)],
        verdicts,
        memory,
        asdict(transfer_tables(model.integer, table_bytes)),
        layers,
    )


def make_firmware(out: Path, data: Dataset) -> Concordance:
    """The BFP model as firmware: simulated on some images, translated and run on all."""
    path = out / "npu" / "model.nnp"
    path.parent.mkdir(parents=True, exist_ok=True)
    firmware = Model(str(path), firmware=lower_real_graph(load_model(out / "bfp").real, NATIVE))
    program, image, ports = firmware.program, firmware.image, firmware.interface
    write_program(path, program, image)
    (samples,) = firmware_images(firmware, data)
    (name,) = ports.inputs
    with Status("simulator", console=log_console()) as status:
        start = time.perf_counter()
        simulated = simulate(program, image, {name: samples[:SIMULATED]})
        simulator = (time.perf_counter() - start) / SIMULATED
        expected = [simulated.outputs[output] for output in ports.outputs]
        verdicts = []
        for kind, file in (("onnx", "concordant.onnx"), ("torch", "concordant.py")):
            backend = Concordant(kind)
            reason = backend.unavailable()
            if reason is not None:
                verdicts.append(Verdict(backend.name, skipped=reason))
                continue
            status.update(backend.name)
            translate(program, image, kind, path.parent / file)
            compute = load_concordant(path.parent / file)
            start = time.perf_counter()
            found = compute({name: samples})
            took = (time.perf_counter() - start) / len(samples)
            outputs = [found[output] for output in ports.outputs]
            some = [array[:SIMULATED] for array in outputs]
            verdicts.append(compare(backend.name, ports, expected, some))
    percent = 100 * correct(outputs, data) / len(data.test_labels)
    return Concordance(
        str(path),
        program.native,
        program.mantissa,
        len(program.instructions),
        simulated.time.cycles,
        percent,
        verdicts,
        (simulator, took),
    )
