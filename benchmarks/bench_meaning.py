"""From raw rows, pictures and recordings to named answers: the same everywhere, for every sample.

    python benchmarks/bench_meaning.py cifar10 fsdd --out runs/bench_meaning.json

cifar10 has folders train/ and test/ of classes of images, fsdd folders of spoken digits; ten tables
and the other sets are of scikit-learn, or drawn with a seed. Every set trains a small network.
`predict` must answer every sample; PyTorch and C get the raw samples of a set, boards the first of
them, and every answer, output code and input code that differs is counted. A table is evaluated
as CSV and as Parquet, with its rows and its columns in other orders: the figures must not change.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn import datasets
from torch import nn

import machine
import samebits as sb
from samebits.verification.registry import backend_named

HERE, BOARDS = ("torch", "c"), ("cortex-m0-large", "cortex-m3", "cortex-m55")
ON_BOARDS = 10  # samples of a set
CLASSES = ("airplane", "cat", "ship")
SIDE = 16  # of drawn pictures
Frame = Any


# --- sets ---------------------------------------------------------------------------------------


def tables() -> Iterator[tuple[str, Frame, str]]:
    """Ten tables by name, with their targets."""
    for name in ("iris", "wine", "breast_cancer", "diabetes", "digits"):
        yield name, getattr(datasets, f"load_{name}")(as_frame=True).frame, "target"
    body = datasets.load_linnerud(as_frame=True).frame
    yield "linnerud", pd.concat([body] * 4, ignore_index=True), "Weight,Waist,Pulse"
    rng = np.random.default_rng(0)
    x, y = datasets.make_moons(300, noise=0.2, random_state=0)
    yield "moons", pd.DataFrame(x, columns=["x", "y"]).assign(side=y), "side"
    x, y = datasets.make_friedman1(300, random_state=0)
    yield "friedman", pd.DataFrame(x).add_prefix("x").assign(value=y), "value"
    words = pd.DataFrame(
        {
            "torque": rng.normal(500, 100, 300),
            "speed": rng.normal(3, 1e-3, 300),
            "hue": rng.choice(["blue", "grün", 'r"ed', "a,b"], 300),
        }
    )
    words["state"] = np.where(words.torque > 500 + 50 * (words.hue == "blue"), "faulty", "healthy")
    yield "words", words, "state"
    labels = pd.DataFrame(rng.normal(0, 1, (300, 3)), columns=["a", "b", "c"])
    labels["hot"], labels["loud"] = (labels.a > 0) * 1, (labels.b + labels.c > 1) * 1
    yield "labels", labels, "hot,loud"


def pictures(folder: Path, cifar: Path) -> Iterator[tuple[str, Path]]:
    """Three folders of images."""
    digits = datasets.load_digits()
    for place, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        if place < 300:
            _picture(folder / "digits" / f"digit {label}", place, np.rint(image * 255 / 16))
    yield "digits as PNG", folder / "digits"
    for name in CLASSES:
        for part, count in (("train", 40), ("test", 15)):
            to = folder / "cifar" / part / name
            to.mkdir(parents=True)
            for file in sorted((cifar / part / name).iterdir())[:count]:
                shutil.copy(file, to)
    yield "CIFAR-10, three classes", folder / "cifar"
    rng = np.random.default_rng(0)
    for place in range(120):
        image = rng.integers(0, 80, (SIDE, SIDE, 3))
        left, top = rng.integers(1, 8, 2)
        image[top : top + 7, left : left + 7, place % 3] += 150
        _picture(folder / "squares" / ("red", "green", "blue")[place % 3], place, image)
    yield "drawn squares", folder / "squares"


def _picture(folder: Path, place: int, image: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(image).astype(np.uint8)).save(folder / f"{place}.png")


def recordings(folder: Path, fsdd: Path) -> Iterator[tuple[str, Path]]:
    """Two folders of recordings of many lengths."""
    for digit, word in enumerate(("zero", "one", "two")):
        to = folder / "spoken" / word
        to.mkdir(parents=True)
        for file in sorted((fsdd / str(digit)).iterdir())[::4][:50]:
            shutil.copy(file, to)
    yield "spoken digits, three", folder / "spoken"
    rng = np.random.default_rng(0)
    for place in range(80):
        count, hertz = int(rng.integers(2000, 12_000)), (250, 900)[place % 2]
        tone = np.sin(2 * np.pi * hertz * np.arange(count) / 16_000) * rng.uniform(300, 20_000)
        samples = np.rint(tone + rng.normal(0, 200, count)).clip(-32768, 32767).astype("<i2")
        to = folder / "tones" / ("low", "high")[place % 2]
        to.mkdir(parents=True, exist_ok=True)
        with wave.open(str(to / f"{place}.wav"), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(16_000)
            sound.writeframes(samples.tobytes())
    yield "drawn tones", folder / "tones"


# --- what is measured ---------------------------------------------------------------------------


def compared(net: sb.Network, data: Any, few: Any) -> dict[str, Any]:
    """Answers of `predict`, and what differs on every backend that runs here."""
    boards = [name for name in BOARDS if backend_named(name).unavailable() is None]
    backends: dict[str, Any] = {}
    for names, given in ((HERE, data), (boards, few)):
        found = net.verify(given, names, raw=True)
        for verdict in found.verdicts:
            backends[verdict.backend] = {
                "samples": verdict.sample_count,
                "values": verdict.total,
                "differing": verdict.differing,
                "skipped": verdict.skipped,
            }
    return {"answers": len(net.predict(data)), "backends": backends}


def trained(data: Any, arch: Any, folder: Path, *recipes: Any, batch: int | None = None) -> Any:
    """A short run."""
    training = sb.Training(epochs=3) if batch is None else sb.Training(epochs=3, batch=batch)
    run = sb.fit(data, arch, folder, training, sb.Execution(threads=1), *recipes)
    assert run is not None  # there is one process
    return run


def of_table(name: str, frame: Frame, target: str, folder: Path) -> dict[str, Any]:
    """One table: trained as CSV, evaluated in four forms, compared raw."""
    frame.to_csv(folder / "t.csv", index=False)
    options: dict[str, Any] = {"target": target}
    if name == "labels":
        options["task"] = "multilabel"
    run = trained(sb.read(folder / "t.csv", **options), "mlp", folder / "run", batch=32)
    forms = {"csv": frame, "rows": frame.sample(frac=1, random_state=1)}
    forms["columns"] = frame[list(reversed(frame.columns))]
    figures = {}
    for form, changed in forms.items():
        changed.to_csv(folder / f"{form}.csv", index=False)
        figures[form] = sb.evaluate(run.folder, sb.read(folder / f"{form}.csv", target=target))
    frame.to_parquet(folder / "t.parquet")
    figures["parquet"] = sb.evaluate(run.folder, sb.read(folder / "t.parquet", target=target))
    evaluated = {
        form: [found.correct, found.total, dict(found.metrics or {})]
        for form, found in figures.items()
    }
    features = frame.drop(columns=target.split(","))
    net = sb.load(run.folder)
    return {
        "set": name,
        "kind": "table",
        "samples": len(frame),
        "evaluated": evaluated,
        **compared(net, features, features[:ON_BOARDS]),
    }


def of_files(name: str, kind: str, data: Path, folder: Path) -> dict[str, Any]:
    """One folder of images or recordings."""
    given = sb.data.load(str(data))
    size = int(np.prod(given.input_shape))
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, given.classes)
    )
    run = trained(data, module, folder / "run", batch=16)
    net = sb.load(run.folder, arch=module)
    files = sorted(path for path in data.rglob("*") if path.is_file())
    few = folder / "few"
    few.mkdir()
    for place, file in enumerate(files[:: max(1, len(files) // ON_BOARDS)][:ON_BOARDS]):
        shutil.copy(file, few / f"{place}{file.suffix}")
    return {"set": name, "kind": kind, "samples": len(files), **compared(net, data, few)}


def main() -> None:
    """Measure all sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("fsdd", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/bench_meaning.json"))
    parser.add_argument("--only", choices=("table", "images", "recordings"), help="of these sets")
    options = parser.parse_args()
    wanted = (options.only,) if options.only else ("table", "images", "recordings")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        for number, (name, frame, target) in enumerate(tables() if "table" in wanted else ()):
            (work / str(number)).mkdir()
            rows.append(of_table(name, frame, target, work / str(number)))
            print(json.dumps(rows[-1]), flush=True)
        images = [(*each, "images") for each in pictures(work / "images", options.cifar)]
        sounds = [(*each, "recordings") for each in recordings(work / "sounds", options.fsdd)]
        for name, data, kind in (*images, *sounds):
            if kind not in wanted:
                continue
            folder = Path(tempfile.mkdtemp(dir=work))
            rows.append(of_files(name, kind, data, folder))
            print(json.dumps(rows[-1]), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine.facts(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
