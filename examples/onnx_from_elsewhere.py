"""An ONNX file from another tool: quantized, and compared with onnxruntime.

Shows:  what becomes of a float model that somebody hands you as a file. Without arguments it makes
        one as a stand-in, a classifier that scikit-learn trained and skl2onnx wrote.
Needs:  onnxruntime and a C compiler; for the stand-in scikit-learn and skl2onnx
        (pip install onnxruntime scikit-learn skl2onnx).
Run:    python examples/onnx_from_elsewhere.py [model.onnx samples.npz]
        (samples.npz: an array [samples, ...] for each input, by its name)
Prints: the float model and its integers beside each other; any ONNX tool reads the file written

    model.onnx: X: float32[1, 30] -> label: int64[1], probabilities: float32[1, 2]
    constants: 2,052 bytes in float32, 717 in integers
    label: onnxruntime's float and the integers agree on 143 of 143 samples
    probabilities: largest difference 0.029
    on torch, c, onnxruntime-integer: same bits: True
    written: build/examples/onnx_from_elsewhere/model.q.onnx
"""

import sys
from pathlib import Path

import numpy as np

import samebits as sb
from samebits.errors import SamebitsError

OUT = Path("build/examples/onnx_from_elsewhere")


def stand_in() -> tuple[Path, Path]:
    """A file such as others make: measurements of tumours, a scaler and a network with 16 units."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_breast_cancer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_breast_cancer(return_X_y=True)
    x, test = x.astype(np.float32), np.arange(len(x)) % 4 == 0
    model = make_pipeline(StandardScaler(), MLPClassifier((16,), max_iter=500, random_state=0))
    model.fit(x[~test], y[~test])
    OUT.mkdir(parents=True, exist_ok=True)
    file = to_onnx(model, x[:1], options={"zipmap": False}).SerializeToString()
    (OUT / "model.onnx").write_bytes(file)
    np.savez(OUT / "samples.npz", X=x[test])
    return OUT / "model.onnx", OUT / "samples.npz"


def main(files: list[str]) -> None:
    """Quantize a file on samples, and compare it with what onnxruntime says of the float one."""
    import onnxruntime

    if len(files) not in (0, 2):
        raise SystemExit(f"expected model.onnx and samples.npz, found {' '.join(files)}")
    path, samples = map(Path, files) if files else stand_in()
    model = sb.load(path)
    ports = (", ".join(map(str, values)) for values in (model.inputs, model.outputs))
    print(f"{path.name}: {' -> '.join(ports)}")
    net = sb.quantize(model, calibration=samples)
    before, after = net.quantization.bytes_before, net.quantization.bytes_after
    print(f"constants: {before:,} bytes in float32, {after:,} in integers")

    with np.load(samples) as archive:
        arrays = dict(archive)
    count = len(next(iter(arrays.values())))
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in net.outputs]
    singles = [{name: x[i : i + 1] for name, x in arrays.items()} for i in range(count)]
    floats = [session.run(names, single) for single in singles]
    found = net.run(arrays, "torch")
    for name, parts in zip(names, zip(*floats, strict=True), strict=True):
        expected = np.concatenate(parts)
        if expected.dtype.kind == "f":
            print(f"{name}: largest difference {abs(expected - found[name]).max():.3f}")
            continue
        same = f"{(expected == found[name]).sum()} of {expected.size}"
        print(f"{name}: onnxruntime's float and the integers agree on {same} samples")
    checked = net.verify(arrays, ["torch", "c", "onnxruntime-integer"])
    print(f"on torch, c, onnxruntime-integer: same bits: {checked.same_bits}")
    print(f"written: {net.save(OUT / 'model.q.onnx')}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SamebitsError as error:  # what is missing here: a sentence, and no traceback
        raise SystemExit(str(error)) from None
    except ImportError as error:
        needed = "pip install onnxruntime scikit-learn skl2onnx"
        raise SystemExit(f"{error.name} is not installed; install it: {needed}") from None
