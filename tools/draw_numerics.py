"""The pictures of docs/guide/numerics.md: curves that the arithmetic itself computes, as SVG.

    .venv/bin/python tools/draw_numerics.py [--folder docs/guide/img] [--out runs/numerics.json]

Random values are Philox words, so every curve of ours is the same on every machine; `hashes.json`
beside the pictures holds their SHA-256, and tests/test_pictures.py computes them again. Curves of
float32 PyTorch are drawn for comparison and are in no hash. Text stays text, backgrounds are
transparent and axes grey: the files are read on white and on black. --out writes the curves, from
which benchmarks/records.py makes the figures of the page.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from samebits.data.digits import load_digits
from samebits.numerics import philox
from samebits.spec import formats
from samebits.spec.training.layers import Parameter, quantize, quantize_input
from samebits.spec.training.moments import value
from samebits.spec.training.optimizer import SGD
from samebits.train import SGD as TrainingSGD
from samebits.train import convert, cross_entropy
from samebits.train.architectures import build, initialise
from samebits.train.convert import model_input

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from machine import write_record

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "guide" / "img"
GREY = "#808080"
COLOURS = ("#1f9e89", "#d9722b", "#8a6fd1", GREY)
LINES = {"line": "-", "dashed": "--", "thin": "-"}


@dataclass(frozen=True)
class Curve:
    """Points (x, y) and how they are drawn: line, thin, dashed, steps, dots or bars.

    exact: computed by ours or in binary64, with the same digits everywhere
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    form: str = "line"
    colour: int = 0
    exact: bool = True


@dataclass(frozen=True)
class Panel:
    """Curves over common axes; `levels` are horizontal lines behind them."""

    x_title: str
    y_title: str
    curves: Sequence[Curve]
    log: str = ""  # the axes with a logarithmic scale: "", "x", "y" or "xy"
    levels: Sequence[float] = ()


# --- random values --------------------------------------------------------------------------------


def normals(count: int, seed: int) -> list[float]:
    """Nearly normal numbers of variance 1, exactly: sums of twelve uniform ones."""
    words = philox.words(12 * count, (seed, 0)).view(count, 12).sum(1).tolist()
    return [math.ldexp(word, -32) - 6.0 for word in words]


def real(codes: Sequence[int], exponent: int | Sequence[int]) -> list[float]:
    """The values of codes with one exponent, or one each."""
    own = [exponent] * len(codes) if isinstance(exponent, int) else exponent
    return [math.ldexp(code, e) for code, e in zip(codes, own, strict=True)]


def error(found: Sequence[float], expected: Sequence[float]) -> float:
    """The root of the mean square of the differences, as a part of the values'."""
    difference = math.fsum((a - b) ** 2 for a, b in zip(found, expected, strict=True))
    return math.sqrt(difference / math.fsum(b * b for b in expected))


# --- the pictures ---------------------------------------------------------------------------------


def block() -> list[Panel]:
    """A block of values and their codes of four bits with one exponent."""
    values = normals(20, 1)
    codes, exponent = quantize(values, 4)
    levels = real(range(-7, 8), exponent)
    at = list(range(len(values)))
    curves = [
        Curve("values", at, values, "bars", 3),
        Curve(f"code times 2 to the {exponent}", at, real(codes, exponent), "dots"),
    ]
    return [Panel("element", "value", curves, levels=levels)]


def parameter(values: Sequence[float]) -> Parameter:
    """A vector with these initial values."""
    return Parameter(formats.initial_weight(values), (len(values),))


def lazy() -> list[Panel]:
    """A weight of which 300 equal updates take four codes; beside it the largest of its tensor."""
    p = parameter([0.3, 0.99])
    gradient = quantize([1.0, 0.0], 32)
    optimizer, state = SGD(lr=1e-4), None
    coded, joint, delayed = [], [], []
    for _ in range(300):
        codes, waiting, exponent = p.weight
        together, e_a = formats.join(p.weight)
        coded.append(math.ldexp(codes[0], exponent))
        joint.append(math.ldexp(together[0], e_a))
        delayed.append(math.ldexp(waiting[0], -formats.DELAYED_BITS))
        p, state = optimizer.update("w", 0, p, gradient, state)
    steps = list(range(300))
    return [
        Panel(
            "step",
            "weight",
            [
                Curve("what products see: W", steps, coded, "steps"),
                Curve("what is kept: W and A", steps, joint, "line", 1),
            ],
        ),
        Panel("step", "A, in codes of W", [Curve("delayed update A", steps, delayed, "line", 2)]),
    ]


def first_edition(momentum: formats.Tensor, gradient: formats.Tensor, mu: float) -> formats.Tensor:
    """Momentum as the first edition kept it: 16-bit codes with one exponent, to nearest."""
    m, x = formats.coefficient(mu)
    codes, exponent = momentum
    terms = [(*gradient, 31), ([m * v for v in codes], exponent + x, 31)]
    return formats.requantize(*formats.combine(terms), 16)


def moments() -> list[Panel]:
    """Momentum 0.99 of an element with three gradients, beside eight that always have some."""
    count, lr, mu, live = 3000, 0.01, 0.99, normals(8 * 3000, 2)
    optimizer, state, p = SGD(lr, mu), None, parameter([0.1] * 9)
    m, x = formats.coefficient(mu)
    exact, old = 0.0, ([0] * 9, formats.EXPONENT_MIN)
    kept: dict[str, list[float]] = {"binary64": [], "first edition": [], "e6m9": []}
    moved = dict.fromkeys(kept, 0.0)
    ways: dict[str, list[float]] = {name: [] for name in kept}
    for step in range(count):
        others = live[8 * step : 8 * step + 8]
        gradient = quantize([1e-3 if step < 3 else 0.0, *others], 32)
        exact = math.ldexp(m, x) * exact + math.ldexp(gradient[0][0], gradient[1])
        old = first_edition(old, gradient, mu)
        p, state = optimizer.update("w", 0, p, gradient, state)
        assert state.momentum is not None
        now = (exact, real(*old)[0], value(state.momentum[0][0], state.momentum[1]))
        for name, number in zip(kept, now, strict=True):
            kept[name].append(abs(number))
            moved[name] += lr * number
            ways[name].append(moved[name])
    steps = list(range(1, count + 1, 20))
    drawn = (
        ("binary64", "dashed", 3),
        ("first edition", "line", 1),
        ("e6m9", "line", 0),
    )

    def until_zero(name: str) -> Curve:
        form, colour = next((form, colour) for n, form, colour in drawn if n == name)
        points = [(s, kept[name][s - 1]) for s in steps if kept[name][s - 1] > 1e-9]
        return Curve(name, [s for s, _ in points], [v for _, v in points], form, colour)

    return [
        Panel("step", "momentum", [until_zero(name) for name, _, _ in drawn], "y"),
        Panel(
            "step",
            "distance moved",
            [
                Curve(name, steps, [ways[name][s - 1] for s in steps], form, colour)
                for name, form, colour in drawn
            ],
        ),
    ]


def small() -> list[Panel]:
    """24 elements whose gradient is always 1e-6, beside one of ordinary size: SGD 0.9.

    Distances are in units of 1e-5.
    """
    live, lr, mu, count = normals(300, 3), 0.01, 0.9, 24
    start = [v / 10 for v in normals(count + 1, 4)]
    velocity, exact = 0.0, [0.0]
    for _ in live:
        velocity = mu * velocity + 1e-6
        exact.append(exact[-1] + lr * velocity)
    curves = [Curve("binary64", list(range(len(exact))), exact, "dashed", 3)]
    for name, seed, colour in (("to nearest", None, 1), ("stochastic", 0, 0)):
        p, state, begin = parameter(start), None, None
        paths: list[list[float]] = []
        optimizer = SGD(lr, mu, seed=seed)
        for other in [*live, None]:
            together, e_a = formats.join(p.weight)
            now = real(together, e_a)
            begin = begin or now
            paths.append([a - b for a, b in zip(begin[:count], now[:count], strict=True)])
            if other is not None:
                gradient = quantize([1e-6] * count + [other], 32)
                p, state = optimizer.update("w", 0, p, gradient, state)
        steps = list(range(len(paths)))
        if seed is not None:
            for index in range(3):
                label = "stochastic, three of them" if index == 0 else ""
                curves.append(Curve(label, steps, [d[index] for d in paths], "thin", 2))
        means = [math.fsum(d) / count for d in paths]
        curves.append(Curve(f"{name}, mean of {count}", steps, means, "line", colour))
    curves = [replace(curve, y=[1e5 * y for y in curve.y]) for curve in curves]
    return [Panel("step", "distance moved, in 1e-5", curves)]


def outliers() -> list[Panel]:
    """The error of eight samples beside a larger one, by bits and by what shares an exponent."""
    values, size = normals(9 * 64, 5), 64
    factors = [2.0**k for k in range(21)]
    kinds = (
        ("8 bits, one exponent", 8, False, "line", 1),
        ("16 bits, one exponent", 16, False, "line", 2),
        ("32 bits, one exponent", 32, False, "line", 3),
        ("8 bits, by rows", 8, True, "line", 0),
    )
    curves = []
    for label, bits, by_rows, form, colour in kinds:
        errors = []
        for factor in factors:
            batch = [factor * v for v in values[:size]] + values[size:]
            array = quantize_input(batch, (9, size), by_rows, bits)
            errors.append(error(real(array.codes, array.exponent)[size:], values[size:]))
        curves.append(Curve(label, factors, errors, form, colour))
    title = "one sample, times the others"
    return [Panel(title, "error of the others", curves, "xy")]


def digits_loss(widths: tuple[int, int, int] | None, seed: int) -> float:
    """Mean loss of the last 20 of 100 steps of an mlp on digits; None is float32."""
    digits = load_digits()
    images, labels = digits.values(digits.train_images), digits.train_labels
    net = build("mlp", (1, 8, 8), 10)
    initialise(net, seed)
    model = net if widths is None else convert(net, widths=widths)
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        if widths is None
        else TrainingSGD(model.parameters(), lr=0.02, momentum=0.9, seed=seed)
    )

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        if widths is None:
            return nn.functional.cross_entropy(model(x), y)
        return cross_entropy(model(model_input(model, x)), y)

    order = philox.words(100 * 64, (6, seed)) % len(labels)
    losses = []
    for chosen in order.view(100, 64):
        loss = loss_of(images[chosen], labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return math.fsum(losses[-20:]) / 20


def widths() -> list[Panel]:
    """The error of ordinary values, and the loss of a net, by the bits of a code."""
    values, bits = normals(4096, 7), [4, 5, 6, 7, 8]
    errors = [error(real(*quantize(values, b)), values) for b in bits]

    def mean_loss(widths: tuple[int, int, int] | None) -> float:
        return math.fsum(digits_loss(widths, seed) for seed in range(3)) / 3

    losses, plain = [mean_loss((b, 2 * b, 32)) for b in bits], mean_loss(None)
    return [
        Panel("bits", "error of 4,096 values", [Curve("one exponent", bits, errors, "points")]),
        Panel(
            "bits of weights and activations",
            "training loss",
            [
                Curve("gradients twice as wide", bits, losses, "points"),
                Curve("float32", bits, [plain] * len(bits), "dashed", 3, exact=False),
            ],
        ),
    ]


PICTURES: dict[str, Callable[[], list[Panel]]] = {
    "block": block,
    "lazy": lazy,
    "moments": moments,
    "small": small,
    "outliers": outliers,
    "widths": widths,
}


# --- drawing --------------------------------------------------------------------------------------


def sha256(panels: Sequence[Panel]) -> str:
    """Of all digits of the exact curves."""
    curves = [
        [c.label, list(map(float, c.x)), list(map(float, c.y))]
        for panel in panels
        for c in panel.curves
        if c.exact
    ]
    return hashlib.sha256(json.dumps(curves).encode()).hexdigest()


def draw(axes: Axes, curve: Curve) -> None:
    """One curve in its form."""
    colour, label = COLOURS[curve.colour], curve.label or None
    if curve.form == "bars":
        axes.bar(curve.x, curve.y, 0.6, label=label, color=colour, alpha=0.45)
    elif curve.form == "dots":
        axes.plot(curve.x, curve.y, "o", label=label, color=colour, markersize=5)
    elif curve.form == "points":
        axes.plot(curve.x, curve.y, "o-", label=label, color=colour, markersize=5)
    elif curve.form == "steps":
        axes.step(curve.x, curve.y, where="post", label=label, color=colour)
    else:
        width = 0.9 if curve.form == "thin" else 1.8
        front = 3 if curve.form == "dashed" else 2  # what ours is compared with stays in sight
        axes.plot(
            *(curve.x, curve.y, LINES[curve.form]),
            label=label,
            color=colour,
            linewidth=width,
            zorder=front,
        )


def svg(panels: Sequence[Panel]) -> str:
    """A row of panels as SVG text."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "samebits", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.6, 3.4), layout="constrained")
        figure.patch.set_visible(False)
        for index, panel in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), index + 1)
            axes.patch.set_visible(False)
            for level in panel.levels:
                axes.axhline(level, color=GREY, linewidth=0.5, alpha=0.5)
            for curve in panel.curves:
                draw(axes, curve)
            if "x" in panel.log:
                axes.set_xscale("log")
            else:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            if "y" in panel.log:
                axes.set_yscale("log")
            axes.set_xlabel(panel.x_title, color=GREY)
            axes.set_ylabel(panel.y_title, color=GREY)
            axes.tick_params(which="both", colors=GREY)
            axes.spines[:].set_color(GREY)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(
                loc="lower left",
                bbox_to_anchor=(0, 1),
                ncols=3 - len(panels),
                frameon=False,
                labelcolor=GREY,
                fontsize="small",
            )
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def main() -> None:
    """Write all pictures and `hashes.json` into a folder, and their curves into a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, help="JSON to write the curves into")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hashes, curves = {}, {}
    for name, make in PICTURES.items():
        panels = make()
        (options.folder / f"{name}.svg").write_text(svg(panels), encoding="utf-8")
        hashes[name] = sha256(panels)
        curves[name] = {
            f"{panel.y_title}: {curve.label}": {"x": list(curve.x), "y": list(curve.y)}
            for panel in panels
            for curve in panel.curves
        }
        print(f"{name}: {hashes[name]}")
    text = json.dumps(hashes, indent=2) + "\n"
    (options.folder / "hashes.json").write_text(text, encoding="utf-8")
    if options.out:
        write_record(options.out, curves=curves)


if __name__ == "__main__":
    main()
