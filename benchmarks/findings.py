"""What pages show of a benchmark: figures by name and tables, from the JSON that it wrote.

A function for every record of docs/records (records.py). It takes the content of one file, or of
several where a table joins runs, and rounds as pages show numbers.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Figure = str | int | float
Found = dict[str, Any]
MIB = 1 << 20


@dataclass
class Findings:
    """Figures by name, and tables: a list of columns and rows of texts each."""

    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def table(self, name: str, columns: list[str], rows: Iterable[Iterable[object]]) -> None:
        """Add a table."""
        texts = [[str(cell) for cell in row] for row in rows]
        assert texts, f"{name}: no rows"
        assert all(len(row) == len(columns) for row in texts), name
        self.tables[name] = {"columns": columns, "rows": texts}


def slug(name: str) -> str:
    """A name of a case as a key: 2 workers is 2-workers."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def number(value: float) -> str:
    """A whole number with commas."""
    return f"{round(value):,}"


def difference(of: dict[str, float], digits: int) -> str:
    """A mean with two standard errors; what rounds to 0 has no minus sign."""
    mean = round(of["mean"], digits) + 0.0
    return f"{mean:+.{digits}f} +- {of['two_errors']:.{digits}f}"


def board(name: str) -> str:
    """A board by its processor: Cortex-M55."""
    return name.removesuffix("-large").title()


def significant(value: float) -> str:
    """Three digits, of whole numbers all."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def extremes(made: Findings, ratios: dict[str, float]) -> None:
    """Figures of the least and the largest of ratios, and whose they are."""
    for name, choose in (("least", min), ("most", max)):
        whose = choose(ratios, key=ratios.__getitem__)
        made.figures |= {name: f"{ratios[whose]:.2f}", f"{name}.name": whose}


# --- training -------------------------------------------------------------------------------------


def same_bits(*runs: Found) -> Findings:
    """The hash of every way, of one run or of several, and how many different ones there are."""
    found = [row for run in runs for row in run["rows"]]
    made = Findings()
    ways: dict[str, dict[str, str]] = {}
    for numerics in ("bfp", "float32"):
        rows = [row for row in found if row["numerics"] == numerics]
        for row in rows:
            short = row["sha256"][:12]
            made.figures[f"{numerics}.{slug(row['case'])}"] = short
            ways.setdefault(row["case"], {})[numerics] = f"`{short}`"
        if rows:
            made.figures[f"{numerics}.different"] = len({row["sha256"] for row in rows})
            made.figures[f"{numerics}.ways"] = len(rows)
    columns = [name for name in ("bfp", "float32") if f"{name}.different" in made.figures]
    rows = [[way, *(hashes.get(c, "") for c in columns)] for way, hashes in ways.items()]
    rows.append(["different results", *(made.figures[f"{c}.different"] for c in columns)])
    titles = {"bfp": "BFP", "float32": "float32 PyTorch"}
    made.table("ways", ["", *(titles[c] for c in columns)], rows)
    return made


def workers(found: Found) -> Findings:
    """Milliseconds of a step on one and on several workers, and what each sends."""
    made = Findings()
    rows = []
    for row in found["rows"]:
        one, several = row["milliseconds"]
        wire = ["", ""] if row["sent"] is None else [f"{row['sent']:,} B", f"{row['ratio']:.3f}"]
        times = [f"{one:,.1f}", f"{several:,.1f}", f"{row['efficiency']:.2f}"]
        rows.append([row["arch"], row["variant"], *times, *wire])
        made.figures[f"{row['arch']}.{slug(row['variant'])}.efficiency"] = times[-1]
    titles = ["1 worker, ms", "2 workers, ms", "efficiency", "sent a step", "ratio"]
    made.table("steps", ["model", "variant", *titles], rows)
    return made


def evidence(found: Found) -> Findings:
    """Accuracy of every line in both numerics, and differences with two standard errors."""
    made = Findings()
    rows = []
    for each in found["lines"]:
        real = next(row for row in each["table"] if row["numerics"] == "float32")
        for row in each["table"]:
            if row["accuracy"] is None:
                continue
            made.figures[f"{each['line']}.{slug(row['numerics'])}"] = f"{100 * row['accuracy']:.2f}"
            made.figures[f"{each['line']}.seeds"] = row["seeds"]
            if row is real:
                continue
            points, loss = row["points"], row["loss_difference"]
            rows.append(
                [
                    each["line"],
                    row["seeds"],
                    f"{100 * real['accuracy']:.2f} %",
                    f"{100 * row['accuracy']:.2f} %",
                    difference(points, 2),
                    difference(loss, 4),
                ]
            )
    made.table("lines", ["line", "seeds", "float32", "BFP", "points", "loss"], rows)
    return made


def deployed(found: Found) -> Findings:
    """Accuracy and agreement of what was learned, evaluated and deployed; means of the seeds."""
    made, nets = Findings(), list(dict.fromkeys(each["net"] for each in found["lines"]))
    forms = ("float32", "same weights", "evaluation", "deployed", "largest")
    rows = []
    for net in nets:
        lines = [each for each in found["lines"] if each["net"] == net]
        means = {
            form: tuple(
                statistics.mean(each[form][key] for each in lines)
                for key in ("accuracy", "agreement")
            )
            for form in forms
        }
        alike = [f", {means[form][1]:.2f}" if form in forms[2:] else "" for form in forms]
        shown = [f"{100 * means[f][0]:.1f} %{a}" for f, a in zip(forms, alike, strict=True)]
        rows.append([net, str(len(lines)), *shown])
        made.figures[f"{net}.agreement"] = f"{means['deployed'][1]:.2f}"
    titles = ["float32", "same weights in float32", "evaluation", "deployed", "deployed, largest"]
    made.table("nets", ["network", "seeds", *titles], rows)
    return made


def tflite(found: Found) -> Findings:
    """What the meaning `tflite` costs beside `exact`: instructions on boards, times here."""
    made, rows = Findings(), found["rows"]
    places = list(dict.fromkeys(each.get("board", each.get("flags")) for each in rows))
    shown, most = [], 0.0
    for net in dict.fromkeys(each["network"] for each in rows):
        cells = []
        for place in places:
            (each,) = (r for r in rows if r["network"] == net and place in r.values())
            first, second = (
                each[m]["instructions"] if "board" in each else each["seconds"][m]
                for m in ("exact", "tflite")
            )
            cells.append(f"{second / first:.2f}")
            most = max(most, second / first if "board" in each else 0.0)
        shown.append([net, *cells])
    made.figures["most"] = f"{most:.3f}"
    made.table("meanings", ["network", *places], shown)
    return made


def losses(found: Found) -> Findings:
    """Scores of networks with losses of their own in both numerics, with standard errors."""
    made = Findings()
    rows = []
    for each in found["tasks"]:
        shown = [f"{each['mean'][n]:.3f} +- {each['error'][n]:.3f}" for n in ("float32", "bfp")]
        agree = "yes" if each["agree"] else "no"
        rows.append([each["task"], each["score"], *shown, agree, f"{each['ratio']:.2f}"])
        made.figures[f"{slug(each['task'])}.ratio"] = f"{each['ratio']:.2f}"
    titles = ["score", "float32", "BFP", "within two standard errors", "time, BFP / float32"]
    made.table("tasks", ["network", *titles], rows)
    return made


def widths(found: Found) -> Findings:
    """Test accuracies by the third width, seed by seed, and the mean of their differences."""
    made, rows = Findings(), list[list[str]]()
    for each in found["networks"]:
        shown = [", ".join(f"{v:.1f}" for v in points) for points in each["points"].values()]
        difference = f"{each['mean']:+.2f} +- {each['error']:.2f}"
        rows.append([each["arch"], str(each["epochs"]), *shown, difference])
    titles = ["epochs", "`8,16,32`", "`8,16,16`", "difference"]
    made.table("networks", ["network", *titles], rows)
    return made


def seeds(*runs: Found) -> Findings:
    """One line of the evidence, seed by seed: accuracies, losses, and the mean of the differences.

    The seeds may be of several runs, on several machines: bits of BFP are the same on all."""
    made = Findings()
    lines = [line for found in runs for line in found["lines"]]
    if len({(line["line"], json.dumps(line["options"])) for line in lines}) > 1:
        raise SystemExit("expected runs of one line with the same options, found several")
    by_seed = {
        seed: {run["numerics"]: run for run in line["runs"] if run["seed"] == seed}
        for line in lines
        for seed in line["seeds"]
    }
    rows, points = [], []
    for seed, pair in sorted(by_seed.items()):
        real, bfp = pair["float32"], pair["bfp"]
        points.append(100 * (bfp["accuracy"] - real["accuracy"]))
        accuracies = [f"{100 * each['accuracy']:.2f} %" for each in (real, bfp)]
        losses = [f"{each['loss']:.4f}" for each in (real, bfp)]
        rows.append([str(seed), *accuracies, f"{points[-1]:+.2f}", *losses])
    made.figures |= {"count": len(rows), "points": f"{sum(points) / len(points):+.2f}"}
    titles = ["seed", "float32", "BFP", "points", "loss, float32", "loss, BFP"]
    made.table("seeds", titles, rows)
    return made


def formats(found: Found) -> Findings:
    """Formats that are emulated in float32: differences with two standard errors."""
    made = Findings()
    rows = []
    for each in found["lines"]:
        for row in each["table"]:
            points, loss = row["points"], row["loss_difference"]
            if points is not None:
                rows.append(
                    [each["line"], row["numerics"], difference(points, 2), difference(loss, 4)]
                )
    made.table("lines", ["line", "format", "points", "loss"], rows)
    return made


def tables(found: Found) -> Findings:
    """Accuracies in percent, R2 of a regression, of every seed."""

    def shown(values: list[float], name: str) -> str:
        if name == "diabetes":
            return ", ".join(f"{value:.3f}" for value in values)
        return ", ".join(f"{100 * value:.1f}" for value in values) + " %"

    made = Findings()
    titles = {"breast_cancer": "breast cancer", "diabetes": "diabetes (R2)"}
    rows = []
    for row in found["rows"]:
        name = row["data"]
        figures = (shown(row[numerics], name) for numerics in ("float32", "bfp"))
        rows.append([titles.get(name, name), row["test_rows"], *figures])
    made.table("data", ["data", "test rows", "float32", "BFP"], rows)
    return made


def rates(*runs: Found) -> Findings:
    """Seeds of a regression that end in a constant at a learning rate, and the median R2."""
    made = Findings()
    rows = []
    for found in runs:
        (row,) = found["rows"]
        cells = [
            f"{sum(value < 0.05 for value in row[numerics])}, {median(row[numerics]):.3f}"
            for numerics in ("float32", "bfp")
        ]
        rows.append([f"{found['options']['lr']}", *cells])
    made.table("diabetes", ["learning rate", "float32", "BFP"], rows)
    return made


def gpt(*pieces: Found) -> Findings:
    """Validation losses in nats, and the shortest time of a step, of every seed; seeds may have
    been run one by one."""
    made = Findings()
    runs = {(run["numerics"], run["seed"]): run for piece in pieces for run in piece["runs"]}
    rows, sums = [], {"float32": 0.0, "bfp": 0.0}
    seeds = sorted({seed for _, seed in runs})
    for seed in seeds:
        f, b = runs["float32", seed], runs["bfp", seed]
        sums["float32"] += f["loss"]
        sums["bfp"] += b["loss"]
        difference = f"{b['loss'] - f['loss']:+.4f}"
        times = [f"{1e3 * run['step']:.0f} ms" for run in (f, b)]
        rows.append([seed, f"{f['loss']:.4f}", f"{b['loss']:.4f}", difference, *times])
        made.figures[f"seed-{seed}.difference"] = difference
    means = {name: total / len(seeds) for name, total in sums.items()}
    made.figures["mean.difference"] = f"{means['bfp'] - means['float32']:+.4f}"
    shown = [f"{means[name]:.4f}" for name in ("float32", "bfp")]
    rows.append(["mean", *shown, made.figures["mean.difference"], "", ""])
    titles = ["seed", "float32", "BFP", "difference", "step, float32", "step, BFP"]
    made.table("seeds", titles, rows)
    return made


def generate(found: Found) -> Findings:
    """Milliseconds of the processor for a token."""
    made = Findings()
    for name, seconds in found["seconds"].items():
        made.figures[f"{slug(name)}.ms"] = f"{1e3 * seconds:.2f}"
    rows = ([name, f"{1e3 * seconds:.2f}"] for name, seconds in found["seconds"].items())
    made.table("tokens", ["", "ms a token"], rows)
    return made


def exponents(found: Found) -> Findings:
    """Losses beside a bright pixel by seed, errors beside an outlying channel, rows that moved."""
    made = Findings()
    rows, errors = [], []
    for name, value in sorted(found["properties"].items()):
        if name.startswith("pixel."):
            pairs = (value[key] for key in ("float32", "row", "tensor"))
            rows.append([name.removeprefix("pixel."), *(f"{a:.4f} / {b:.4f}" for a, b in pairs)])
        elif name.startswith("outlier."):
            shares = (f"{100 * value[key]:.2f} %" for key in ("row-shift", "row"))
            layer = name.removeprefix("outlier.")
            errors.append([layer, *shares])
            for way in ("row-shift", "row"):
                made.figures[f"outlier.{layer}.{way}"] = f"{100 * value[way]:.1f} %"
        elif name.startswith("weights."):
            key = name.removeprefix("weights.")
            made.figures[f"weights.{key}"] = f"{100 * value:.1f} %"
        elif name == "unseen":
            made.figures["unseen.moved"] = f"{value['unseen']:.6f}"
            made.figures["seen.moved"] = f"{value['seen']:.2f}"
        elif name.startswith(("state.", "saved.")):
            made.figures[name] = value
    made.table("pixel", ["seed", "float32", "by rows", "one exponent a tensor"], rows)
    made.table("outlier", ["layer", "shifts of channels", "by rows alone"], errors)
    return made


def numerics(found: Found) -> Findings:
    """Where the curves of the guide's pictures end, and what an outlier does to the others."""
    curves = found["curves"]
    made = Findings()

    def at(picture: str, curve: str, x: float | None = None) -> float:
        """The value of a curve where it ends, or at x."""
        points = curves[picture][curve]
        y: float = points["y"][-1 if x is None else points["x"].index(x)]
        return y

    for way in ("first edition", "e6m9", "binary64"):
        made.figures[f"moved.{slug(way)}"] = f"{at('moments', f'distance moved: {way}'):.4f}"
    small = {
        "binary64": "binary64",
        "nearest": "to nearest, mean of 24",
        "stochastic": "stochastic, mean of 24",
    }
    for key, label in small.items():
        end = at("small", f"distance moved, in 1e-5: {label}")
        made.figures[f"small.{key}"] = f"{end:.2f}"
    narrow, rows, wide = (
        f"error of the others: {label}"
        for label in ("8 bits, one exponent", "8 bits, by rows", "32 bits, one exponent")
    )
    made.figures["outlier.64"] = f"{100 * at('outliers', narrow, 64.0):.0f} %"
    points = curves["outliers"][narrow]
    lost = min(x for x, y in zip(points["x"], points["y"], strict=True) if y >= 1)
    made.figures["outlier.lost"] = f"{lost:.0f}"
    made.figures["outlier.rows"] = f"{100 * at('outliers', rows):.1f} %"
    made.figures["outlier.wide"] = f"{100 * at('outliers', wide):.2f} %"
    for bits in (4, 6, 8):
        loss = at("widths", "training loss: gradients twice as wide", bits)
        made.figures[f"loss.{bits}"] = f"{loss:.3f}"
    made.figures["loss.float32"] = f"{at('widths', 'training loss: float32'):.3f}"
    return made


def train(*runs: Found) -> Findings:
    """Times of a step to float32's, and bytes at the peak and between steps; of a model in several
    runs, those of the last."""
    made = Findings()
    rows = []
    results = {each["model"]: each for found in runs for each in found["results"]}
    for model, each in results.items():
        for threads, timed in each["time"].items():
            for variant, measured in timed["variants"].items():
                ratio, memory = measured["ratio"], each["memory"].get(variant)
                bytes_ = ["", "", ""]  # of a GPU, only times
                if memory is not None:
                    kept = f"{memory['persistent_bytes_per_parameter']:.2f}"
                    peaks = (memory[f"peak_{kind}_bytes"] for kind in ("tensor", "rss"))
                    bytes_ = [*(f"{peak / MIB:.1f} MiB" for peak in peaks), kept]
                    made.figures[f"{model}.{variant}.bytes"] = kept
                shown = f"{ratio['median']:.2f}"
                key = "ratio" if threads == "1" else f"ratio.{threads}"
                made.figures[f"{model}.{variant}.{key}"] = shown
                rows.append(
                    [
                        *(model, threads, variant),
                        f"{1e3 * measured['step_seconds']['median']:,.2f}",
                        f"{shown} ({ratio['min']:.2f} to {ratio['max']:.2f})",
                        number(measured["page_faults"]) if "page_faults" in measured else "",
                        *bytes_,
                    ]
                )
    alone = {model: each["time"].get("1", {}) for model, each in results.items()}
    ratios = {
        model: timed["variants"]["bfp"]["ratio"]["median"]
        for model, timed in alone.items()
        if "bfp" in timed.get("variants", {})
    }
    if ratios:
        extremes(made, ratios)
    columns = [
        *("model", "threads", "variant", "step, ms", "ratio", "page faults"),
        *("peak of tensors", "growth of the process", "bytes kept per parameter"),
    ]
    made.table("steps", columns, rows)
    last = {each["model"]: found for found in runs for each in found["results"]}
    _products(made, [(last[model], each) for model, each in results.items()])
    return made


def _products(made: Findings, results: list[tuple[Found, Found]]) -> None:
    """Products a second beside the processor's own, and the step that these alone would take.

    results: a run, and what it found of a model
    """
    rows = []
    for found, each in results:
        model, peaks, floor = each["model"], found.get("peaks", {}), 0.0
        for kind, own in each.get("products", {}).items():
            if not own["products"]:
                continue
            speed = own["products"] / own["seconds"] / 1e9
            name, count = next(
                ((n, c) for n, c in found["instructions"][kind] if n in peaks), ("", 1)
            )
            peak = peaks.get(name, math.inf) / count
            floor += own["products"] / peak / 1e9
            share = 100 * own["seconds"] / (each["seconds"] + each["update_seconds"])
            made.figures[f"{model}.{slug(kind)}"] = f"{speed:.0f}"
            rows.append(
                [
                    *(model, kind, f"{own['products'] / 1e6:,.1f}", f"{speed:.1f}"),
                    f"{100 * speed / peak:.0f} %" if name else "",
                    f"{share:.0f} %",
                ]
            )
        float32 = each["time"].get("1", {}).get("variants", {}).get("float32")
        if floor and float32:
            ratio = f"{floor / float32['step_seconds']['median']:.2f}"
            made.figures[f"{model}.floor"] = ratio
            rows.append([model, "floor of a step, to float32", "", "", ratio, ""])
    if rows:
        columns = ["model", "products", "millions", "billions a second", "of the peak", "share"]
        made.table("products", columns, rows)


# --- recomputation --------------------------------------------------------------------------------


def recompute(found: Found) -> Findings:
    """Peaks in MiB, times to float32's that stores everything, and loads of two threads."""
    made = Findings()
    first, rows = found["rows"][0], []
    for row in found["rows"]:
        peak, predicted = row["peak_bytes"] / MIB, row["predicted_bytes"]
        ratio = f"{row['wall_seconds'] / first['wall_seconds']:.2f}"
        made.figures[f"{slug(row['name'])}.ratio"] = ratio
        made.figures[f"{slug(row['name'])}.peak"] = f"{peak:.2f}"
        if row["predicted_load"] is not None:
            for kind in ("predicted", "measured"):
                made.figures[f"{slug(row['name'])}.load.{kind}"] = f"{row[f'{kind}_load']:.2f}"
        rows.append(
            [
                *(row["name"], f"{peak:.2f}"),
                "" if predicted is None else f"{predicted / MIB:.2f}",
                *(f"{1e3 * row['wall_seconds']:.1f}", ratio),
                f"{row['cpu_seconds'] / first['cpu_seconds']:.2f}",
            ]
        )
    made.table("steps", ["step", "peak, MiB", "predicted", "ms", "ratio", "CPU ratio"], rows)
    return made


def plan_times(found: Found) -> Findings:
    """Operations of large networks, and the seconds of their plans."""
    made = Findings()
    rows = (
        (name, f"{n:,}", f"{seconds:.1f}") for name, (n, seconds) in found["properties"].items()
    )
    made.table("networks", ["network", "operations", "processor time, s"], rows)
    return made


def operation_times(found: Found) -> Findings:
    """How far the modelled time of operations is from the measured one, as a factor."""
    made = Findings()
    networks: dict[str, list[Found]] = {}
    for row in found["rows"]:
        networks.setdefault(row["network"], []).append(row)
    rows = []
    for name, own in [*networks.items(), ("all", found["rows"])]:
        factors = sorted(row["factor"] for row in own)
        middle = median(factors)
        worst = max(own, key=lambda row: float(row["factor"]))
        at = "" if name == "all" else worst["kind"]
        rows.append([name, len(own), f"{middle:.2f}", f"{worst['factor']:.1f}", at])
    made.table("factors", ["network", "operations", "median factor", "worst", "at"], rows)
    return made


def batchnorm_inverse(found: Found) -> Findings:
    """Channels whose outputs determine the inputs, and two times."""
    made = Findings()
    rows = [
        [
            row["arch"],
            f"{row['exact_channels']:,} of {row['channels']:,}",
            f"{row['exact_batch_norms']} of {row['batch_norms']}",
            *(number(1e6 * row[f"{key}_seconds"]) for key in ("again", "look_up")),
        ]
        for row in found["rows"]
    ]
    columns = ["exact channels", "exact batch-norms", "computed again, us", "looked up, us"]
    made.table("networks", ["network", *columns], rows)
    return made


# --- deployment -----------------------------------------------------------------------------------


def targets(*models: Found) -> Findings:
    """Outputs that differ from the reference, of every backend and model."""
    made = Findings()
    names = list(dict.fromkeys(row["backend"] for found in models for row in found["results"]))
    columns = [found["name"] for found in models]
    for found in models:
        rows = found["results"]
        made.figures[f"{slug(found['name'])}.accuracy"] = f"{100 * found['accuracy']:.2f}"
        made.figures[f"{slug(found['name'])}.backends"] = sum(r["skipped"] is None for r in rows)
        made.figures[f"{slug(found['name'])}.outputs"] = max(r.get("of", 0) for r in rows)
    made.figures["differing"] = sum(r.get("differing", 0) for f in models for r in f["results"])

    def cell(found: Found, name: str) -> str:
        row = next((row for row in found["results"] if row["backend"] == name), None)
        if row is None:
            return ""
        return "does not fit" if row["skipped"] else f"{row['differing']} of {row['of']:,}"

    rows_ = ([name, *(cell(found, name) for found in models)] for name in names)
    made.table("backends", ["outputs that differ", *columns], rows_)
    return made


BACKENDS = {
    "torch": "PyTorch",
    "c": "C",
    "onnxruntime-integer": "onnxruntime, integer export",
    "onnxruntime": "onnxruntime, tables, not optimized",
    "onnxruntime-optimized": "onnxruntime, tables, optimized",
    "onnxruntime-float": "onnxruntime, float functions, optimized",
}


def inference(found: Found) -> Findings:
    """Microseconds by contender, bytes, and instructions of boards."""
    made = Findings()
    keys = {
        "ours int8": "ours",
        "onnxruntime int8 QDQ": "onnxruntime",
        "onnxruntime float32": "onnxruntime-float",
    }
    rows, counts = [], []
    for each in found["results"]:
        model, own = each["model"], each["seconds"]["ours int8"]
        cells = []
        for name, key in keys.items():
            seconds = each["seconds"][name]
            made.figures[f"{model}.{key}.us"] = round(1e6 * seconds)
            made.figures[f"{model}.{key}.ratio"] = f"{seconds / own:.2f}"
            ratio = "" if key == "ours" else f", {seconds / own:.2f}"
            cells.append(f"{number(1e6 * seconds)} us{ratio}")
        rows.append([model, *cells, f"{each['arena']:,} B", f"{each['constants']:,} B"])
        boards = each["boards"].values()
        counts.append([model, *(f"{b['instructions'] / 1e6:.1f} M" for b in boards)])
    columns = ["model", "ours, int8", "onnxruntime int8 QDQ", "onnxruntime float32"]
    made.table("times", [*columns, "arena", "constants"], rows)
    made.table("boards", ["model", *map(board, found["results"][0]["boards"])], counts)
    return made


def differences(found: Found) -> Findings:
    """Outputs that differ from the reference in backends that need not agree."""
    made = Findings()
    models = {each["model"]: each["verdicts"] for each in found["results"]}
    rows = []
    for backend, title in BACKENDS.items():
        cells = []
        for model, verdicts in models.items():
            own = next(v for v in verdicts if v["backend"] == backend)
            if own["skipped"] is not None:
                cells.append("not run")
                continue
            share = math.ceil(100 * own["samples"] / own["sample_count"])
            made.figures[f"{model}.{backend}"] = share
            more = f" ({share} %; {own['largest']:.0f})" if own["differing"] else ""
            cells.append(f"{own['differing']}{more}")
        rows.append([title, *cells])
    made.table("outputs", ["outputs that differ (inputs; largest)", *models], rows)
    return made


def edge(found: Found) -> Findings:
    """Microseconds by contender, and the ratio of each one's to those of the generated C."""
    made = Findings()
    keys = {
        "ours, native": "ours",
        "LiteRT int8": "litert",
        "onnxruntime int8": "onnxruntime",
        "ours, avx2": "avx2",
    }
    rows = []
    for each in found["results"]:
        cells, own = [], each["seconds"]["ours, native"]
        for name, key in keys.items():
            if name not in each["seconds"]:
                cells.append("")
                continue
            seconds = each["seconds"][name]
            ratio = f"{seconds / own:.2f}"
            made.figures[f"{each['net']}.{key}.us"] = f"{1e6 * seconds:.1f}"
            made.figures[f"{each['net']}.{key}.ratio"] = ratio
            beside = "" if key in ("ours", "avx2") else f", {ratio}"
            cells.append(f"{1e6 * seconds:.1f}{beside}")
        rows.append([each["net"], *cells])
    seconds = {each["net"]: each["seconds"] for each in found["results"]}
    if all("LiteRT int8" in each for each in seconds.values()):
        ratios = {net: s["ours, native"] / s["LiteRT int8"] for net, s in seconds.items()}
        extremes(made, ratios)
    columns = ["ours, `-march=native`", "LiteRT int8", "onnxruntime int8", "ours, AVX2"]
    made.table("networks", ["network, us", *columns], rows)
    return made


def cortex(found: Found) -> Findings:
    """Millions of instructions of an inference, ratios to CMSIS-NN's, flash and memory."""
    made = Findings()
    networks = list(dict.fromkeys(row["network"] for row in found["rows"]))
    for row in found["rows"]:
        key = f"{row['network']}.{row['board'].removeprefix('cortex-')}"
        ours = row["ours"]["instructions"]
        made.figures[f"{key}.ours"] = f"{ours / 1e6:.3f}"
        theirs = row["cmsis-nn"]["instructions"]
        made.figures[f"{key}.cmsis-nn"] = f"{theirs / 1e6:.3f}"
        made.figures[f"{key}.ratio"] = f"{ours / theirs:.3f}"
        flash = row["ours"]["flash"] / row["cmsis-nn"]["flash"]
        made.figures[f"{key}.flash"] = f"{flash:.3f}"
        made.figures[f"{key}.arena"] = row["ours"]["arena"]
    shown = made.figures
    extremes(made, {name: float(shown[f"{name}.m55.ratio"]) for name in networks})
    rows = []
    for name in networks:
        keys = [f"{name}.{short}" for short in ("m3", "m4", "m55")]
        counts = [
            " / ".join(str(shown[f"{key}.{whose}"]) for whose in ("ours", "cmsis-nn"))
            + f" = {shown[f'{key}.ratio']}"
            for key in keys
        ]
        flash = ", ".join(str(shown[f"{key}.flash"]) for key in keys)
        memory = f"{shown[f'{name}.m55.arena']:,} B"
        rows.append([name, *counts, flash, memory])
    boards = map(board, ("cortex-m3", "cortex-m4", "cortex-m55"))
    columns = ["network", *boards, "flash: M3, M4, M55", "memory, M55"]
    made.table("networks", columns, rows)
    return made


def aarch64(found: Found) -> Findings:
    """Millions of instructions of an inference."""
    made = Findings()
    ways = list(found["rows"][0]["instructions"])
    rows = [
        [row["network"], *(f"{row['instructions'][way] / 1e6:.2f}" for way in ways)]
        for row in found["rows"]
    ]
    made.table("networks", ["network", *ways], rows)
    return made


def ship(found: Found) -> Findings:
    """Seconds of two commands, in brackets those of the processor."""
    made = Findings()
    titles = {
        "ship": "`ship`: quantize, verify on 100 inputs, build for three boards, write",
        "verify": "`verify` on an emulated Cortex-M3",
    }
    networks = [row["network"] for row in found["rows"]]
    rows = [
        [title, *(f"{row[key]['wall']:.0f} ({row[key]['cpu']:.0f})" for row in found["rows"])]
        for key, title in titles.items()
    ]
    made.table("seconds", ["seconds (of the processor)", *networks], rows)
    return made


def versions(*runs: Found) -> Findings:
    """What other versions of Python, torch and numpy computed."""
    made = Findings()
    made.table("versions", runs[0]["columns"], (row for found in runs for row in found["rows"]))
    return made


def meaning(*parts: Found) -> Findings:
    """Raw samples to answers: answers beside samples, and values that differ, by place."""
    made = Findings()
    rows, differing, values = [], 0, 0
    boards: set[str] = set()
    for row in (row for found in parts for row in found["rows"]):
        cells = []
        for here in (True, False):
            kept = {
                name: each
                for name, each in row["backends"].items()
                if (name in ("torch", "c")) is here and not each["skipped"]
            }
            boards |= set() if here else set(kept)
            wrong = sum(each["differing"] for each in kept.values())
            every = sum(each["values"] for each in kept.values())
            differing, values = differing + wrong, values + every
            cells.append(f"{wrong:,} of {every:,}")
        forms = [json.dumps(each) for each in row.get("evaluated", {}).values()]
        same = "" if not forms else "the same" if len(set(forms)) == 1 else "OTHER"
        answers = f"{row['answers']:,} of {row['samples']:,}"
        rows.append([row["set"], row["kind"], answers, *cells, same])
    columns = ["set", "of", "answers", "differ in PyTorch and C", "differ on boards", "evaluated"]
    made.table("sets", columns, rows)
    made.figures |= {
        "values": f"{values:,}",
        "differing": differing,
        "boards": ", ".join(sorted(map(board, boards))),
    }
    return made


def firmware(*models: Found) -> Findings:
    """Outputs that differ, and accuracies through the processor's numerics."""
    made = Findings()
    differing, accuracies = [], []
    mantissas = (15, 8, 5, 3)
    for found in models:
        sums: dict[str, list[int]] = {}
        shares: dict[tuple[int, int, bool], float] = {}
        for row in found["rows"]:
            shares[row["native"], row["mantissa"], row["requantize"]] = 100 * row["accuracy"]
            for name, verdict in row["verdicts"].items():
                total = sums.setdefault(name, [0, 0])
                total[0] += verdict["differing"]
                total[1] += verdict["total"]
        for name, (wrong, every) in sums.items():
            differing.append([found["name"], name, f"{wrong} of {every:,}"])
            made.figures["differing"] = int(made.figures.get("differing", 0)) + wrong
        for native in sorted({key[0] for key in shares}):
            cells = []
            for m in mantissas:
                plain, partial = (shares[native, m, requantize] for requantize in (False, True))
                more = "" if f"{partial:.2f}" == f"{plain:.2f}" else f" ({partial:.2f})"
                cells.append(f"{plain:.2f}{more}")
            accuracies.append([f"{found['name']}, N = {native}", *cells])
    made.table("outputs", ["network", "translation", "outputs that differ"], differing)
    made.table("accuracy", ["test accuracy, %", *(f"M = {m}" for m in mantissas)], accuracies)
    return made


def concord(found: Found) -> Findings:
    """Milliseconds of a batch, ratios to float32's, outputs that differ."""
    made = Findings()
    results = [row for row in found["results"] if not row["requantize"]]
    mantissas = sorted({row["mantissa"] for row in results})
    rows = []
    for native in sorted({row["native"] for row in results}):
        own = {row["mantissa"]: row for row in results if row["native"] == native}
        cells = []
        for m in mantissas:
            seconds = own[m]["seconds_per_batch"]["torch"]
            cells.append(f"{1e3 * seconds:.1f} ({own[m]['torch_over_float32']:.1f})")
        onnx = [row["seconds_per_batch"]["onnx"] for row in own.values()]
        ratios = [row["onnx_over_float32"] for row in own.values()]
        span = f"{1e3 * min(onnx):.0f} to {1e3 * max(onnx):.0f}"
        cells.append(f"{span} ({min(ratios):.0f} to {max(ratios):.0f})")
        rows.append([f"N = {native}", *cells])
    columns = ["ms a batch (ratio)", *(f"M = {m}" for m in mantissas), "ONNX (onnxruntime)"]
    made.table("settings", columns, rows)
    every = found["results"]
    made.figures["differing"] = sum(sum(r["outputs_differing"].values()) for r in every)
    for name in ("float32", "torch", "onnx"):
        times = [1e3 * row["seconds_per_batch"][name] for row in every]
        made.figures[f"{name}.ms"] = f"{min(times):.0f} to {max(times):.0f} ms"
    simulator = [row["simulator_seconds_per_sample"] for row in every]
    made.figures["simulator.s"] = f"{min(simulator):.2f} to {max(simulator):.2f} s"
    times = [row["simulator_over_torch"] for row in every]
    made.figures["simulator.ratio"] = f"{min(times):,.0f} to {max(times):,.0f}"
    return made


# --- recurrent networks and sound -----------------------------------------------------------------


def lstm_long(found: Found) -> Findings:
    """Signal-to-noise ratios after 100, 1,000 and 10,000 steps."""
    made = Findings()
    properties = sorted(found["properties"].items(), key=lambda item: int(item[0].split(".")[1]))
    rows = [
        [f"{name.split('.')[1]} bits", *(f"{value:.2f} dB" for value in values)]
        for name, values in properties
    ]
    made.table("steps", ["steps", "100", "1,000", "10,000"], rows)
    return made


def spoken(found: Found) -> Findings:
    """Accuracies of every model, correct recordings by seed, and signal-to-noise ratios."""
    made = Findings()
    rows, titles = [], {"bfp": "trained in BFP"}
    for name, mean in found["mean_accuracy"].items():
        own = [row for row in found["runs"] if row["model"] == name]
        difference = "" if name == "float32" else f"{mean - found['mean_accuracy']['float32']:+.2f}"
        correct = ", ".join(str(row["correct"]) for row in own)
        noise = [row["sqnr_db"] for row in own if "sqnr_db" in row]
        shown = ", ".join(f"{max(v.values()) if isinstance(v, dict) else v:.1f}" for v in noise)
        made.figures[f"{slug(name)}.accuracy"] = f"{mean:.2f}"
        ratios = f"{shown} dB" if shown else ""
        rows.append([titles.get(name, name), f"{mean:.2f} %", difference, correct, ratios])
    columns = ["model", "accuracy", "to float32", f"each seed, of {found['test']}"]
    made.table("models", [*columns, "SQNR of the outputs"], rows)
    return made


def quality(found: Found) -> Findings:
    """Ratios of networks at 8 bits, ours and onnxruntime's, and how many lie where."""
    made = Findings()

    def pair(row: Found, key: str, shown: str, factor: int = 1) -> str:
        values = [row[way].get(key) for way in ("ours", "peer")]
        if values[0] is None:
            return ""
        return ", ".join(shown.format(factor * value) for value in values)

    rows, more = [], []
    for row in found["rows"]:
        more.append(row["more"])
        kilobytes = [f"{row[way]['bytes'] / 1000:,.0f}" for way in ("ours", "peer")]
        rows.append(
            [
                row["name"],
                f"{row['maker']}: {row['kind']}",
                f"{row['calibration']}, {row['unseen']:,}",
                f"{row['ours']['all']:.1f}",
                f"{row['peer']['all']:.1f}",
                f"{round(more[-1], 1) + 0.0:+.1f}",
                pair(row, "worst", "{:.1f}") if len(row["ours"]["outputs"]) > 1 else "",
                f"{row['peer_optimised']['all']:.1f}",
                pair(row, "agreement", "{:.1f} %", 100),
                ", ".join(kilobytes),
            ]
        )
    made.figures |= {
        "count": len(rows),
        "makers": len({row["maker"] for row in found["rows"]}),
        "packages": len({row["package"] for row in found["rows"]}),
        "mean": f"{statistics.mean(more):+.1f}",
        "median": f"{round(statistics.median(more), 1) + 0.0:+.1f}",
        "least": f"{min(more):+.2f}",
        "most": f"{max(more):+.1f}",
        "below": sum(each < -0.5 for each in more),
        "above": sum(each > 0.5 for each in more),
        "missing": ", ".join(sorted({*found["listed"]} - {row["name"] for row in found["rows"]})),
        "onnxruntime": found["onnxruntime"],
    }
    columns = ["network", "maker and kind", "calibrated on, measured on", "dB", "onnxruntime"]
    columns += ["difference", "worst output", "optimised", "same decision", "kB"]
    made.table("networks", columns, rows)
    return made


def lstm(found: Found) -> Findings:
    """Microseconds of a step, whole sequences and step by step, and bytes."""
    made = Findings()
    rows, sizes = [], []
    for each in found["results"]:
        times, shape = each["seconds_per_step"], " x ".join(map(str, each["shape"]))
        own = {way: times[f"ours, 8 bits, {way}"] for way in ("whole", "by steps")}
        cells = []
        for contender in ("ours, 8 bits", "ours, 16 bits", *OTHERS):
            parts = []
            for way, ours in own.items():
                seconds = times[f"{contender}, {way}"]
                ratio = "" if contender == "ours, 8 bits" else f" ({seconds / ours:.2f})"
                parts.append(f"{significant(1e6 * seconds)}{ratio}")
                key = f"{slug(shape)}.{slug(contender)}.{slug(way)}"
                made.figures[key] = f"{seconds / ours:.2f}"
            cells.append(" / ".join(parts))
        rows.append([shape, *cells])
        shares = [
            f"{each['constants'][f'ours, {bits} bits']:,}, "
            f"{each['constants'][f'ours, {bits} bits'] / each['float_bytes']:.3f}"
            for bits in (8, 16)
        ]
        sizes.append([shape, f"{each['float_bytes']:,}", *shares])
    columns = ["features x cells x layers", "ours, 8 bits", "ours, 16 bits", *OTHERS.values()]
    made.table("times", columns, rows)
    made.table("bytes", ["features x cells x layers", "float32", "8 bits", "16 bits"], sizes)
    boards, counts = found["results"][0]["instructions"], []
    nets = {" x ".join(map(str, each["shape"])): each for each in found["results"]}
    steps = {shape: each["instructions"] for shape, each in nets.items()}
    for shape, own in found["trained"].items():
        steps[f"{shape}, trained in BFP"] = own
    for shape, own in steps.items():
        shown = (own.get(name) for name in boards)
        counts.append([shape, *("does not fit" if n is None else f"{n:,}" for n in shown)])
    made.table("instructions", ["features x cells x layers", *map(board, boards)], counts)
    return made


OTHERS = {
    "torch": "torch float32",
    "onnxruntime": "onnxruntime float32",
    "onnxruntime dynamic int8": "onnxruntime dynamic int8",
}


def audio(found: Found) -> Findings:
    """Milliseconds of a minute of sound, and instructions of a frame."""
    made = Findings()
    rows, boards = [], []
    names = ("integer, C", "integer, numpy", "float32, torch.stft")
    for each in found["results"]:
        rate, seconds = f"{each['rate'] // 1000} kHz", each["seconds"]
        cells = []
        for name in names:
            ratio = seconds[names[-1]] / seconds[name]
            more = "" if name == names[-1] else f", {ratio:.2f}"
            cells.append(f"{1e3 * seconds[name]:.1f} ms{more}")
        rows.append([rate, *cells])
        counts = [f"{b['instructions']:,}" for b in each["boards"].values()]
        boards.append([rate, *counts, f"{each['boards']['cortex-m3']['flash']:,} B"])
    made.table("times", ["rate", *names], rows)
    columns = ["rate", *map(board, found["results"][0]["boards"]), "flash (M3)"]
    made.table("boards", columns, boards)
    return made


# --- networks people have -------------------------------------------------------------------------


def networks(found: Found) -> Findings:
    """Seconds of the test of every network of torchvision."""
    made = Findings()
    times = {}
    for test, seconds in found["seconds"].items():
        if name := re.search(r"\[(\w+?)[\]-]", test):
            times[name[1]] = seconds
    made.table("seconds", ["network", "seconds"], ([n, f"{s:.0f}"] for n, s in times.items()))
    return made


def torchvision(*runs: Found) -> Findings:
    """Losses of every network after twenty steps, in both numerics; networks of several runs."""
    made = Findings()
    lines = [line for found in runs for line in found["lines"]]
    rows = []
    for each in lines:
        f, b = each["float32"], each["bfp"]
        losses = (f["first"], f["last"], each["rounded"]["last"], b["last"])
        cosines = (each["moved_gradient"], each["gradient"])
        rows.append(
            [
                *(each["net"], str(each["images"]), f"{each['rate']:g}"),
                *(f"{loss:.4f}" for loss in losses),
                *(f"{each[key]:.3f}" for key in ("moved", "ratio")),
                ", ".join(f"{cosine:.2f}" for cosine in cosines),
                f"{f['step']:.2f} s, {b['step']:.2f} s",
            ]
        )
    made.figures = {
        "within": sum(abs(line["ratio"] - 1) <= 0.05 for line in lines),
        "moved": sum(abs(line["moved"] - 1) >= 0.05 for line in lines),
        "count": len(lines),
        "turned": sum(line["moved_gradient"] < 0.5 for line in lines),
        "median": f"{statistics.median(line['ratio'] for line in lines):.3f}",
        "least": f"{min(line['ratio'] for line in lines):.3f}",
        "most": f"{max(line['ratio'] for line in lines):.3f}",
    }
    columns = ["network", "images", "rate", "before", "float32", "rounded", "BFP"]
    ratios = ["ratio, rounded", "ratio, BFP", "cosines", "step, float32 and BFP"]
    made.table("networks", [*columns, *ratios], rows)
    return made


def accuracy(*lines: Found) -> Findings:
    """Ratios of transformers in dB, and ways to quantize a trained mobilenetv2."""
    made = Findings()
    ratios, ways = [], []
    for line in lines:
        name, found = line["name"], line["found"]
        if name in ("vit", "bert"):
            keys = ("samebits", "samebits minmax", "samebits high")
            others = ("onnxruntime per tensor", "onnxruntime per channel")
            ratios.append([name, *(f"{found[key]:.2f}" for key in (*keys, *others))])
            for key in (*keys, *others):
                made.figures[f"{name}.{slug(key)}"] = f"{found[key]:.2f}"
        else:
            found = found.get("trained", found)  # the float network, on as many images
            share = f"{100 * found['accuracy']:.2f}"
            noise = found.get("sqnr_db")
            before = found.get("accuracy_before")
            made.figures[f"{name}.accuracy"] = share
            if noise is not None:
                made.figures[f"{name}.sqnr"] = f"{noise:.2f}"
            ways.append(
                [
                    name,
                    f"{share} %" + ("" if before is None else f" ({100 * before:.2f} % before)"),
                    "" if noise is None else f"{noise:.2f} dB",
                ]
            )
    if ratios:
        columns = ["", "samebits", "with `minmax` ranges", "`--effort high`"]
        made.table("ratios", [*columns, "onnxruntime, per tensor", "per channel"], ratios)
    if ways:
        made.table("ways", ["mobilenetv2", "accuracy", "SQNR of the logits"], ways)
    return made


# --- tests ----------------------------------------------------------------------------------------


def conformance(found: Found) -> Findings:
    """ONNX node cases that pass, and why the others do not."""
    made = Findings()
    outcome = found["properties"]["outcome"]
    reasons = outcome.pop("reasons")
    made.figures = outcome
    made.table("reasons", ["not passed", "cases"], reasons.items())
    return made


def suite(*pieces: Found) -> Findings:
    """How many tests passed, and in what time: of a run, or of its pieces one after another."""
    counts: Counter[str] = sum((Counter(piece["counts"]) for piece in pieces), Counter())
    minutes, seconds = divmod(round(sum(piece["total_seconds"] for piece in pieces)), 60)
    hours, rest = divmod(minutes, 60)
    time = f"{hours}:{rest:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
    figures: dict[str, Figure] = {name: counts[name] for name in pieces[0]["counts"]}
    return Findings(figures | {"time": time})


def gpu_kernels(found: Found) -> Findings:
    """Of every kernel: forms, most registers, spilled bytes and instructions, matrix units."""
    made, of = Findings(), dict[str, list[Found]]()
    for row in found["kernels"]:
        of.setdefault(row["kernel"], []).append(row)
    every = found["kernels"]
    made.figures["count"], made.figures["forms"] = len(of), len(every)
    made.figures["fused"] = sum(row["fused"] for row in every)
    made.figures["most_registers"] = max(row["registers"] for row in every)
    made.figures["spilling"] = ", ".join(sorted({r["kernel"] for r in every if r["spilled"]}))
    made.table(
        "kernels",
        ["kernel", "forms", "registers", "spilled bytes", "instructions", "by wgmma", "by mma"],
        (
            [f"`{name}`", len(rows)]
            + [max(r[k] for r in rows) for k in ("registers", "spilled", "instructions")]
            + [sum(r[unit] > 0 for r in rows) for unit in ("wgmma", "mma")]
            for name, rows in of.items()
        ),
    )
    return made


def fuzz(found: Found) -> Findings:
    """Damaged files read, by reader."""
    made = Findings()
    tallies = found["tallies"]
    cases = [(t["name"], t["accepted"] + t["refused"], t["accepted"]) for t in tallies]
    cases.append(("all", *(sum(case[i] for case in cases) for i in (1, 2))))
    rows = [[name, f"{count:,}", f"{accepted:,}"] for name, count, accepted in cases]
    made.figures["defects"] = sum(len(t["defects"]) for t in tallies)
    made.table("readers", ["reader", "cases", "accepted"], rows)
    return made
