"""Start from float weights, fine-tune in block floating point: deployed accuracy before and after.

Shows:  a network that was trained in float32 meets another sensor. It is trained on with integer
        weights, gradients and optimizer, and what is trained is what is deployed.
Needs:  the extra `demo` (its digits).
Run:    python examples/finetune_in_bfp.py
Prints: from the same float weights every machine gets the same hash; the float weights themselves
        differ a little between machines

    float32, on the sensor that it was trained for: 98.61 %
    deployed in integers: 98.33 %, and on the new sensor: 9.47 %
    fine-tuned in integers, 2 epochs on 1 thread: 96.38 %, parameters 049e48c4c11c43de
    fine-tuned in integers, 2 epochs on 2 threads: 96.38 %, parameters 049e48c4c11c43de
"""

import shutil
from dataclasses import replace
from pathlib import Path

import samebits as sb
from samebits.data import Dataset, load
from samebits.errors import SamebitsError

OUT = Path("build/examples/finetune_in_bfp")


def new_sensor(data: Dataset) -> Dataset:
    """The same digits, dark on bright, at half the contrast and one pixel further right."""

    def seen(images):
        return (data.peak - images // 2).roll(1, dims=3)

    return replace(data, train_images=seen(data.train_images), test_images=seen(data.test_images))


def main() -> None:
    """Train in float32, deploy, meet other data, train on in integers."""
    shutil.rmtree(OUT, ignore_errors=True)  # what an earlier run left
    old = load("digits")
    new = new_sensor(old)
    first = sb.fit(
        old, "cnn", OUT / "float", sb.Numerics(numerics="float32"), sb.Training(epochs=3)
    )
    print(f"float32, on the sensor that it was trained for: {100 * first.accuracy:.2f} %")
    net = sb.quantize(first.folder, old.values(old.train_images))
    before, after = (100 * sb.evaluate(net, data).accuracy for data in (old, new))
    print(f"deployed in integers: {before:.2f} %, and on the new sensor: {after:.2f} %")

    how = sb.Training(epochs=2), sb.Optimizer(lr=0.05)
    for threads in (1, 2):
        run = sb.fit(
            new,
            "cnn",
            OUT / f"bfp-{threads}",
            *how,
            sb.Execution(threads=threads),
            init=first.folder,
        )
        print(
            f"fine-tuned in integers, 2 epochs on {threads} thread{'s' * (threads > 1)}: ", end=""
        )
        print(f"{100 * run.accuracy:.2f} %, parameters {run.sha256[:16]}")


if __name__ == "__main__":
    try:
        main()
    except SamebitsError as error:  # what is missing here: a sentence, and no traceback
        raise SystemExit(str(error)) from None
