"""scikit-learn's models on digits, iris and breast cancer: the same integers everywhere, and the
class of scikit-learn wherever rounding cannot have changed it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import samebits as sb
from compare import assert_same
from samebits.ir import Graph, Trait, has
from samebits.ir.real.trees import THRESHOLDS, WEIGHTS, ensemble_of
from samebits.spec.graph import REFERENCE
from sklearn_models import data, exported, needed

BACKENDS = ["torch", "c", "onnxruntime-integer"]
DATA = ("digits", "iris", "breast_cancer")
QUICK = {("iris", "tree"), ("iris", "boosting"), ("breast_cancer", "mlp")}


def classifiers() -> dict[str, Any]:
    from sklearn import ensemble, linear_model, neural_network, pipeline, preprocessing, tree

    seeded = {"random_state": 0}
    scaled = pipeline.make_pipeline
    mlp = neural_network.MLPClassifier((16,), max_iter=300, **seeded)
    return {
        "logistic": scaled(
            preprocessing.StandardScaler(), linear_model.LogisticRegression(max_iter=500)
        ),
        "svm": scaled(preprocessing.MinMaxScaler(), linear_model.SGDClassifier(**seeded)),
        "mlp": scaled(preprocessing.StandardScaler(), mlp),
        "tree": tree.DecisionTreeClassifier(**seeded),
        "forest": ensemble.RandomForestClassifier(20, max_depth=8, **seeded),
        "extra": ensemble.ExtraTreesClassifier(20, max_depth=8, **seeded),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=10, **seeded),
        "histogram": ensemble.HistGradientBoostingClassifier(max_iter=10, **seeded),
    }


def regressors() -> dict[str, Any]:
    from sklearn import ensemble, linear_model, neural_network, pipeline, preprocessing, tree

    seeded = {"random_state": 0}
    scaled = pipeline.make_pipeline
    mlp = neural_network.MLPRegressor(hidden_layer_sizes=(16,), max_iter=300, **seeded)
    return {
        "linear": scaled(preprocessing.StandardScaler(), linear_model.LinearRegression()),
        "ridge": scaled(preprocessing.MinMaxScaler(), linear_model.Ridge()),
        "mlp": scaled(preprocessing.StandardScaler(), mlp),
        "tree": tree.DecisionTreeRegressor(**seeded),
        "forest": ensemble.RandomForestRegressor(10, max_depth=8, **seeded),
        "extra": ensemble.ExtraTreesRegressor(10, max_depth=8, **seeded),
        "boosting": ensemble.GradientBoostingRegressor(n_estimators=10, **seeded),
        "histogram": ensemble.HistGradientBoostingRegressor(max_iter=10, **seeded),
    }


def matrix(names: Any) -> list[Any]:
    """Every set of data with every model; all but a few are slow."""
    return [
        pytest.param(d, m, marks=() if (d, m) in QUICK else pytest.mark.slow)
        for d in DATA
        for m in names
    ]


TREES = ("tree", "forest", "extra", "boosting", "histogram")


def quantized(model: Any, x: Any, folder: Any, scheme: str | None = None) -> sb.Network:
    path = folder / "model.onnx"
    path.write_bytes(exported(model, x).SerializeToString())
    return sb.quantize(path, x, sb.Formats(scheme=scheme))


def by_definition(graph: Graph, codes: Any) -> dict[str, Any]:
    """The integer graph of one sample in the plain loops of spec/graph.py."""
    values = {**graph.constants, **dict(zip(graph.inputs, codes, strict=True))}
    for node in graph.nodes:
        arrays = [values[name] for name in node.inputs]
        out = REFERENCE[node.op](arrays, node.attributes)
        values[node.output] = out.astype(graph.values[node.output].dtype)
    return {name: values[name] for name in graph.outputs}


def check_bits(net: sb.Network, x: Any) -> dict[str, Any]:
    """All backends agree on the samples and on random codes, and with the definition."""
    for samples in (x[:: max(1, len(x) // 100)], "random:20"):
        found = net.verify(samples, BACKENDS)
        assert found, found.to_dict()
    from samebits.verification.inputs import quantize_samples

    graph = net.model.integer
    value = graph.values[graph.inputs[0]]
    codes = net.run(x, codes=True)
    for row in (0, len(x) // 2, len(x) - 1):
        expected = by_definition(graph, [quantize_samples(x[row : row + 1], value)])
        for name, array in expected.items():
            own = codes[name][row : row + 1].reshape(array.shape)
            assert_same(own, array, [(name, row, *i) for i in np.ndindex(array.shape)])
    return net.run(x)


def near(net: sb.Network, before: sb.Network, x: Any) -> Any:
    """Whether a sample has a feature that differs from a threshold on it by less than the step of
    its scale, and is not equal to it: docs/guide/quantize.md says what is rounded."""
    value = net.inputs[0]
    steps = np.array([float(scale) for scale in value.quantization.scales])
    found = np.zeros(len(x), bool)
    for node in before.model.real.nodes:
        if has(node.op, Trait.TALLIES):
            arrays = [before.model.real.constants.get(name) for name in node.inputs]
            features, ends = ensemble_of(arrays).features, arrays[THRESHOLDS].astype(np.float64)
            gaps = np.abs(x[:, features].astype(np.float64) - ends)
            found |= ((gaps > 0) & (gaps < steps[features if len(steps) > 1 else 0])).any(1)
    return found


def rounding_of_scores(net: sb.Network, before: sb.Network) -> float:
    """The most that the rounding of the weights of leaves can change a score."""
    pairs = [
        [(graph, n) for n in graph.nodes if has(n.op, Trait.TALLIES)]
        for graph in (before.model.real, net.model.real)
    ]
    total = 0.0
    for (old, a), (new, b) in zip(*pairs, strict=True):
        wanted, found = old.constants[a.inputs[WEIGHTS]], new.constants[b.inputs[WEIGHTS]]
        trees = len(old.constants[a.inputs[1]])
        total += trees * float(np.abs(wanted.astype(np.float64) - found).max())
    return total


def margins(scores: Any) -> Any:
    """The best score of each row less the next one; of one column, the distance from 0."""
    if scores.ndim == 1 or scores.shape[1] == 1:
        return np.abs(scores.reshape(-1))
    ordered = np.sort(scores, 1)
    return ordered[:, -1] - ordered[:, -2]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # no matter here
@pytest.mark.parametrize(("name", "kind"), matrix(("logistic", "svm", "mlp", *TREES)))
def test_classifiers(name, kind, tmp_path):
    needed()
    pytest.importorskip("onnxruntime", reason="runs the integer file")
    x, y = data(name, classes=True)
    model = classifiers()[kind].fit(x, y)
    net, before = quantized(model, x, tmp_path), sb.load(tmp_path / "model.onnx")
    found = list(check_bits(net, x).values())
    labels = model.classes_[next(a for a in found if a.dtype.kind == "i").reshape(-1)]
    if kind in TREES:
        raw = hasattr(model, "decision_function")
        scores = model.decision_function(x) if raw else model.predict_proba(x)
        sure = ~near(net, before, x) & (margins(scores) > 2 * rounding_of_scores(net, before))
    else:
        scores, mine = (
            next(a for a in outputs if a.dtype.kind == "f")
            for outputs in (before.run(x).values(), found)
        )
        sure = margins(scores) > 2 * np.abs(scores - mine).max()
    same = labels == model.predict(x)
    assert same[sure].all()
    assert sure.mean() > 0.7
    assert same.mean() > 0.97


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # no matter here
@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("kind", ["linear", "ridge", "mlp", *TREES])
def test_regressors(name, kind, tmp_path):
    needed()
    pytest.importorskip("onnxruntime", reason="runs the integer file")
    x, y = data(name, classes=False)
    model = regressors()[kind].fit(x, y)
    scheme = None if kind in TREES else "asymmetric-s16"  # rare features are many deviations away
    net = quantized(model, x, tmp_path, scheme)
    before = sb.load(tmp_path / "model.onnx")
    (found,) = check_bits(net, x).values()
    error = np.abs(found.reshape(-1) - model.predict(x).reshape(-1))
    if kind in TREES:  # and what the float file differs from scikit-learn
        file = np.abs(next(iter(before.run(x).values())).reshape(-1) - model.predict(x))
        sure = ~near(net, before, x)
        assert error[sure].max() <= rounding_of_scores(net, before) + file.max() + 1e-6
        assert sure.mean() > 0.3
    else:
        assert error.max() < 0.15 * np.ptp(y)  # mostly of weights of 8 bits
