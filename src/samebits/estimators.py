"""scikit-learn's protocol: a classifier and a regressor of rows of numbers.

This room alone imports scikit-learn, and only when one of its names is used. Without it `sb.fit`
takes a DataFrame, and `predict` answers one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from samebits import entrance
from samebits.api import fit
from samebits.errors import InputError
from samebits.network import Network
from samebits.recipes import Execution, Optimizer, Training, read
from samebits.sources import load

if TYPE_CHECKING:
    import pandas

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
except ImportError as error:
    raise InputError(
        f"SamebitsClassifier, SamebitsRegressor: expected scikit-learn 1.6 or later ({error}); "
        "run: pip install scikit-learn, or train by sb.fit, which needs pandas alone"
    ) from error

Array = np.ndarray[Any, Any]
TARGET = "answer"  # name of the column of targets beside the features
LARGEST = 1 << 30  # bytes of a network
SEEDS = 1 << 31


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """Base of both: a network is trained on all rows, and kept as the bytes of its ONNX file, which
    the estimator is pickled with."""

    def __init__(
        self,
        arch: str = "mlp",
        *,
        epochs: int = 40,
        batch: int = 32,
        lr: float | None = None,
        random_state: Any = 0,
        threads: int | None = None,
    ) -> None:
        self.arch = arch
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.random_state = random_state
        self.threads = threads

    def _train(self, X: Array, targets: Array, task: str, names: Sequence[str] = ()) -> None:
        """Train on rows [n, columns] and their targets, which have names; sets `onnx_`."""
        rows = self._frame(X)
        rows[self._target()] = targets
        seed = self.random_state
        if not isinstance(seed, int):
            seed = 0 if seed is None else int(check_random_state(seed).randint(SEEDS))
        with tempfile.TemporaryDirectory() as folder:
            fit(
                read((rows, rows), target=self._target(), task=task),
                self.arch,
                Path(folder) / "run",
                Training(epochs=self.epochs, batch=min(self.batch, len(rows)), seed=seed),
                Optimizer(lr=self.lr),
                Execution(threads=self.threads),
            )
            net = load(Path(folder) / "run")
            if names and len(set(names)) == len(names):
                net = net.with_contract(
                    {"outputs": [{"name": net.outputs[0].name, "names": names}]}
                )
            self.onnx_ = entrance.read(net.save(Path(folder) / "net.onnx"), LARGEST)

    @property
    def network_(self) -> Network:
        """The trained network, for `verify`, `compile` and `save`: its contract names columns and
        classes. Each call reads it anew."""
        check_is_fitted(self)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "net.onnx"
            file.write_bytes(self.onnx_)
            return load(file)

    def _answered(self, X: Any) -> Any:
        """Predict rows by the network."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        return self.network_.predict(self._frame(rows))

    def _frame(self, X: Array) -> pandas.DataFrame:
        """Rows as a frame, with the names of training or x0, x1 ..."""
        import pandas

        names = getattr(self, "feature_names_in_", None)
        columns = [f"x{place}" for place in range(X.shape[1])] if names is None else list(names)
        return pandas.DataFrame(X, columns=columns)

    def _target(self) -> str:
        """A name for the column of targets that no feature has."""
        name = TARGET
        while name in getattr(self, "feature_names_in_", ()):
            name += "_"
        return name


class SamebitsClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier of rows of numbers, trained in integers, in scikit-learn's protocol.

    arch, epochs, batch, lr, threads: as `sb.fit` takes them; a batch is at most all rows
    random_state: the seed

    `network_` is the trained network, `classes_` are the classes. Equal data and options give equal
    bits on every machine, and so equal answers.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows [n, columns] and their classes [n]. Raises ValueError for data that
        scikit-learn's estimators refuse, and for one class."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"SamebitsClassifier: expected at least 2 classes, found one class: "
                f"{self.classes_[0]!r}"
            )
        self._train(X, places, "classification", [str(name) for name in self.classes_])
        return self

    def predict(self, X: Any) -> Array:
        """The class of each row."""
        found = self._answered(X)
        return np.asarray(self.classes_[found.chosen])

    def predict_proba(self, X: Any) -> Array:
        """The softmax of the network's scores [n, classes], in binary64: it ranks classes as the
        network does, but its last bits depend on the machine."""
        scores = self._answered(X).scores
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


class SamebitsRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regressor of rows of numbers, trained in integers, in scikit-learn's protocol.

    Parameters and `network_` as those of `SamebitsClassifier`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows [n, columns] and their values [n]. Raises ValueError for data that
        scikit-learn's estimators refuse."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self._train(X, np.asarray(y, np.float64), "regression")
        return self

    def predict(self, X: Any) -> Array:
        """The value of each row."""
        return np.asarray(self._answered(X).chosen[:, 0])
