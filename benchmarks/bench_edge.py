"""Batch-1 inference of the five networks of tests/edge_nets.py on one thread: generated C against
LiteRT (TensorFlow Lite with XNNPACK) and onnxruntime, all of 8 bits, timed in turns in one run, the
least of the rounds.

    PYTHONPATH=tests python benchmarks/bench_edge.py --out runs/bench_edge.json
    PYTHONPATH=tests python benchmarks/bench_edge.py --nets ds-cnn --flags avx2

LiteRT runs int8 models of the same shapes that TensorFlow converts from Keras, with other random
weights: only its time is compared. Its images are [N, H, W, C] where ours are [N, C, H, W]; we
transpose and it need not. A ratio above 1 means that ours is faster. A contender that cannot run
here has a line that says why.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench_inference import FLAGS, Run, c_library, onnx_session, timed
from edge_nets import NETS, edge_net
from machine import write_record

OURS, LITERT, ONNX = "ours", "LiteRT int8", "onnxruntime int8"
# Instruction sets that the generated C is compiled for; AVX2 as it would be on older processors.
TARGETS = {"native": FLAGS, "avx2": ("-O3", "-mavx2"), "x86-64": ("-O3",)}


def _resnet8(layers: Any, x: Any) -> Any:
    def conv(x: Any, width: int, kernel: int, stride: int = 1, relu: bool = True) -> Any:
        act = "relu" if relu else None
        return layers.Conv2D(width, kernel, stride, "same", activation=act)(x)

    x = conv(x, 16, 3)
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        beside = x if stride == 1 else conv(x, width, 1, stride, relu=False)
        body = conv(conv(x, width, 3, stride), width, 3, relu=False)
        x = layers.ReLU()(layers.Add()([body, beside]))
    return layers.Dense(10)(layers.Flatten()(layers.AveragePooling2D(8)(x)))


def _separable(layers: Any, x: Any, width: int, stride: int = 1, kernel: Any = 3) -> Any:
    x = layers.DepthwiseConv2D(kernel, stride, "same", activation="relu")(x)
    return layers.Conv2D(width, 1, activation="relu")(x)


def _ds_cnn(layers: Any, x: Any) -> Any:
    x = layers.Conv2D(64, (10, 4), 2, "same", activation="relu")(x)
    for _ in range(4):
        x = _separable(layers, x, 64)
    return layers.Dense(12)(layers.Flatten()(layers.AveragePooling2D((25, 5))(x)))


def _mobilenet(layers: Any, x: Any) -> Any:
    x = layers.Conv2D(8, 3, 2, "same", activation="relu")(x)
    widths = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5]
    for width, stride in [*widths, (256, 2), (256, 1)]:
        x = _separable(layers, x, width, stride)
    return layers.Dense(2)(layers.Flatten()(layers.AveragePooling2D(3)(x)))


def _autoencoder(layers: Any, x: Any) -> Any:
    for width in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = layers.Dense(width, activation="relu")(x)
    return layers.Dense(640)(x)


def _streaming(layers: Any, x: Any) -> Any:
    x = layers.Conv2D(128, (3, 1), activation="relu")(x)
    for width in (128, 128, 128, 32):
        x = _separable(layers, x, width, kernel=(3, 1))
    return layers.Dense(3)(layers.Flatten()(layers.AveragePooling2D((28, 1))(x)))


# The same networks for Keras, and the shapes of their inputs.
KERAS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "resnet8": (_resnet8, (32, 32, 3)),
    "ds-cnn": (_ds_cnn, (49, 10, 1)),
    "mobilenet": (_mobilenet, (96, 96, 3)),
    "autoencoder": (_autoencoder, (640,)),
    "streaming": (_streaming, (30, 1, 40)),
}


def litert(name: str) -> Run:
    """One inference of the network by LiteRT on one thread, with XNNPACK, as it is by default."""
    keras: Any = importlib.import_module("keras")
    tensorflow: Any = importlib.import_module("tensorflow")
    make, shape = KERAS[name]
    keras.utils.set_random_seed(0)
    inputs = keras.Input(shape, batch_size=1)
    model = keras.Model(inputs, make(keras.layers, inputs))

    def calibration() -> Iterator[list[Any]]:
        source = np.random.default_rng(0)
        for _ in range(16):
            yield [source.uniform(-1, 1, (1, *shape)).astype(np.float32)]

    converter = tensorflow.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tensorflow.lite.Optimize.DEFAULT]
    converter.representative_dataset = calibration
    converter.target_spec.supported_ops = [tensorflow.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tensorflow.int8
    content = converter.convert()
    interpreter = tensorflow.lite.Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    place = interpreter.get_input_details()[0]
    assert place["dtype"] == np.int8
    codes = np.random.default_rng(1).integers(-128, 128, place["shape"], np.int8)
    interpreter.set_tensor(place["index"], codes)
    invoke: Run = interpreter.invoke
    return invoke


def contenders(name: str, flags: list[str], folder: Path) -> tuple[dict[str, Run], dict[str, str]]:
    """(what can run here, why the others cannot)."""
    _, model = edge_net(name)
    runs = {
        f"{OURS}, {target}": c_library(model, folder / target, TARGETS[target]) for target in flags
    }
    missing = {}
    others: dict[str, Callable[[], Run]] = {
        LITERT: lambda: litert(name),
        ONNX: lambda: onnx_session(model.real, model),
    }
    for contender, make in others.items():
        try:
            runs[contender] = make()
        except ImportError as error:
            missing[contender] = str(error)
    return runs, missing


def main() -> None:
    """Print a line per network and contender, then the least ratio of each; write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--flags", nargs="+", default=["native", "avx2"], choices=list(TARGETS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    least: dict[tuple[str, str], tuple[float, str]] = {}
    for name in options.nets:
        with tempfile.TemporaryDirectory() as folder:
            runs, missing = contenders(name, options.flags, Path(folder))
            seconds = timed(runs, min)
        for contender, value in seconds.items():
            ratios = []
            for target in options.flags:
                ratio = value / seconds[f"{OURS}, {target}"]
                ratios.append(f"{ratio:5.2f}")
                found = (ratio, name)
                least[contender, target] = min(least.get((contender, target), found), found)
            print(f"{name:12} {contender:18} {1e6 * value:8.1f} us   ratio {'  '.join(ratios)}")
        for contender, reason in missing.items():
            print(f"{name:12} {contender:18} not here: {reason}")
        results.append({"net": name, "seconds": seconds, "missing": missing})
    print(f"ratios: of each contender's time to ours, compiled for {', '.join(options.flags)}")
    for (contender, target), (ratio, name) in least.items():
        if not contender.startswith(OURS):
            print(f"least of {contender}, {target}: {ratio:.2f} ({name})")
    if options.out is not None:
        write_record(options.out, results=results, flags=TARGETS)


if __name__ == "__main__":
    main()
