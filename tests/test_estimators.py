"""scikit-learn's own checks of estimators, and DataFrames in `fit`."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pandas as pd
import pytest

import samebits as sb
from given_options import called
from samebits.errors import InputError

FAILING: dict[str, dict[str, str]] = {"SamebitsClassifier": {}, "SamebitsRegressor": {}}
"""Checks of scikit-learn that fail, with the reason, by estimator."""


def table(rows: int = 90, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(rng.normal(40, 9, (rows, 2)), columns=["torque", "speed"])
    made["state"] = np.where(made.torque > made.speed, "faulty", "healthy")
    return made


def test_a_frame_is_what_its_file_is(tmp_path):
    """The same parameters, by their hash, whatever the order of columns; and two frames are the
    parts for training and for testing."""
    rows = table()
    rows.to_csv(tmp_path / "t.csv", index=False)
    options = {"epochs": 1, "batch": 16, "threads": 1, "target": "state"}
    runs = [
        called(sb.fit, data=data, arch="mlp", out=tmp_path / str(place), **options)
        for place, data in enumerate((tmp_path / "t.csv", rows, rows[["state", "torque", "speed"]]))
    ]
    assert len({run.sha256 for run in runs}) == 1
    split = called(
        sb.fit, data=(rows[:60], rows[60:]), arch="mlp", out=tmp_path / "split", **options
    )
    assert split.result.test_count == 30
    assert sb.evaluate(split.folder, rows, whole=True).total == 90
    with pytest.raises(InputError, match=r"--resize does not apply to a pandas\.DataFrame"):
        sb.fit(sb.read(rows, resize=8), "mlp", tmp_path / "r")
    with pytest.raises(InputError, match="--target: expected one of its columns"):
        sb.fit(sb.read(rows, target="gone"), "mlp", tmp_path / "r")


def test_a_classifier_and_a_regressor(tmp_path):
    pytest.importorskip("sklearn")
    rows = table(120)
    features = rows[["torque", "speed"]]
    classifier = sb.SamebitsClassifier(epochs=12, batch=16, threads=1)
    assert classifier.fit(features, rows.state) is classifier
    assert classifier.score(features, rows.state) > 0.8
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.predict(features), classifier.predict(features))
    found = classifier.predict_proba(features)
    assert np.array_equal(classifier.classes_[found.argmax(1)], classifier.predict(features))
    net = classifier.network_
    assert net.contract.outputs[0].names == ("faulty", "healthy")
    assert net.predict(features).answers == classifier.predict(features).tolist()
    net.compile(tmp_path / "c", sb.Packaging(package="arduino"))
    assert sb.load(tmp_path / "c").predict(features).answers == net.predict(features).answers
    regressor = sb.SamebitsRegressor(epochs=12, batch=16, threads=1)
    regressor.fit(features.to_numpy(), rows.torque - rows.speed)
    assert regressor.score(features.to_numpy(), rows.torque - rows.speed) > 0.5
    with pytest.raises(ValueError, match="2 classes, found one"):
        classifier.fit(features, ["a"] * 120)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.delitem(sys.modules, "samebits.estimators", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r"expected scikit-learn 1\.6 or later .*pip install"):
        _ = sb.SamebitsClassifier


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILING)
def test_checks_of_scikit_learn(name):
    """All but those of FAILING, which fail."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    estimator = getattr(sb, name)(threads=1)
    results = checks.check_estimator(estimator, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert set(failed) == set(FAILING[name]), failed
    assert len(results) > 40
