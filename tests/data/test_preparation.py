"""What a run records of a table's columns, and what is refused of such a record."""

from __future__ import annotations

import json

import numpy as np
import pytest

from samebits import progress
from samebits.data.columns import ColumnScale
from samebits.data.preparation import Feature, Preparation, features_of
from samebits.errors import InputError

PREPARED = Preparation(
    (Feature("a", ColumnScale(0.1, 1e-7)), Feature("b", None, ("x", "y"))),
    (ColumnScale(-1.5, 3.0),),
    ("0",),
)


def test_a_record_reads_back_with_every_bit():
    assert Preparation.from_dict(json.loads(json.dumps(PREPARED.to_dict()))) == PREPARED
    assert PREPARED.width == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("targets"),
        lambda r: r.update(features=3),
        lambda r: r.update(classes=[1]),
        lambda r: r["features"][0].pop("name"),
        lambda r: r["features"][0].update(spread=0.0),
        lambda r: r["features"][0].update(spread=1),
        lambda r: r["features"][0].update(centre=float("nan")),
        lambda r: r["features"][1].update(categories=[]),
        lambda r: r["features"][1].update(categories=["x"] * 101),
        lambda r: r["targets"].append(None),
        lambda r: r["features"].append("categories"),
    ],
)
def test_other_records_are_refused(change):
    record = PREPARED.to_dict()
    change(record)
    with pytest.raises(InputError, match="expected the columns of a table as samebits records"):
        Preparation.from_dict(record)


def test_codes_keep_the_order_of_training():
    columns = {"b": ["y", "x"], "a": np.array([0.1, 0.1 + 1e-7])}
    assert PREPARED.codes(columns, "t").tolist() == [[0, 0, 4096], [4096, 4096, 0]]
    with pytest.raises(InputError, match="found 'c' besides"):
        PREPARED.codes({**columns, "c": ["x"]}, "t")
    with pytest.raises(
        InputError, match="expected a column 'a' of numbers as in training, found w"
    ):
        PREPARED.codes({**columns, "a": ["1", "2"]}, "t")


def test_a_column_that_says_nothing_is_noted():
    heard = []

    class Notes(progress.Listener):
        def note(self, text):
            heard.append(text)

    with progress.listening(Notes()):
        features_of({"a": np.ones(4)}, np.ones(4, bool), "t")
    assert heard == ["t: column 'a' holds one number in all training rows: it says nothing"]
