"""`samebits predict`: answers as text, as a table and as JSON."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd

import samebits as sb


def test_answers_as_a_table_and_as_json(tmp_path, samebits):
    folder = tmp_path / "run"
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(40, 9, (90, 2)), columns=["torque", "speed"])
    table["state"] = np.where(table.torque > table.speed, "faulty", "healthy")
    table[:60].to_csv(tmp_path / "train.csv", index=False)
    run = sb.fit(
        tmp_path / "train.csv",
        "mlp",
        folder,
        sb.Training(epochs=1, batch=16),
        sb.Execution(threads=1),
    )
    table[60:].drop(columns="state").to_csv(tmp_path / "t.csv", index=False)
    wanted = run.predict(tmp_path / "t.csv")
    done = samebits("predict", folder, tmp_path / "t.csv", "--out", tmp_path / "a.csv", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert "30 answers" in done.out
    assert "and 10 more; --out FILE.csv writes all" in done.out
    assert f"written: {tmp_path / 'a.csv'}" in done.out
    with (tmp_path / "a.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["row", "answer", "score faulty", "score healthy"]
    assert [row[1] for row in rows] == wanted.answers
    assert np.array_equal(np.array([row[2:] for row in rows], float), wanted.scores)
    record = json.loads(samebits("predict", folder, tmp_path / "t.csv", "--json").out)
    assert record == json.loads(json.dumps(wanted.to_dict()))
    assert list(wanted.to_frame().columns) == head
    table.drop(columns="speed").assign(hot=1, loud=2).to_csv(tmp_path / "bad.csv", index=False)
    done = samebits("predict", folder, tmp_path / "bad.csv")
    assert (done.code, done.out) == (2, "")
    assert "found no 'speed' and 'hot', 'loud' besides" in done.err
    done = samebits("predict", folder, tmp_path / "t.csv", "--out", tmp_path / "a.txt")
    assert "expected a name ending in .csv" in done.err
