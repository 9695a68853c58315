"""The audit of training traces: which tensor parts first, and files from anywhere."""

import json

import pytest

from samebits.errors import InputError
from samebits.train.run.trace import FORMAT, LONGEST_LINE
from samebits.verification.training_trace import TrainingParting, audit, is_training_trace

LAYERS, PARAMETERS = ["a", "b"], ["a.bias", "a.weight"]


def text(number):
    return f"{number:016x}"


def header(step=0):
    run = {"lr": 0.1, "seed": 3}
    state = [text(step * 100 + i) for i in range(2)]
    names = {"layers": LAYERS, "parameters": PARAMETERS}
    return {"format": FORMAT, "run": run, "step": step, "state": state, **names}


def record(step):
    def shard(number):
        first = 10000 * step + 1000 * number
        return {
            "outputs": [text(first + 1), text(first + 2)],
            "loss": text(first + 3),
            "gradients": [None, text(first + 5)],
        }

    return {
        "step": step,
        "shards": [shard(0), shard(1)],
        "state": [text(step * 100 + i) for i in range(2)],
    }


def write(path, records, end="\n"):
    path.write_text("\n".join(json.dumps(r) for r in records) + end)
    return path


@pytest.fixture
def whole(tmp_path):
    return write(tmp_path / "a.jsonl", [header(), *(record(step) for step in (1, 2, 3))])


def test_equal_traces(tmp_path, whole):
    assert is_training_trace(whole)
    result = audit(whole, whole)
    assert (result.steps, result.parting) == (3, None)


def test_only_common_steps_are_compared(tmp_path, whole):
    short = write(tmp_path / "b.jsonl", [header(), record(1)])
    assert audit(whole, short).steps == audit(short, whole).steps == 1
    late = write(tmp_path / "c.jsonl", [header(2), record(3)])
    assert audit(whole, late).steps == audit(late, whole).steps == 1
    with pytest.raises(InputError, match="expected traces with a step in common, found none"):
        audit(short, late)


def test_partial_last_line_is_left_out(tmp_path, whole):
    cut = tmp_path / "b.jsonl"
    cut.write_text(whole.read_text()[:-10])
    assert audit(whole, cut).steps == 2


def shard_change(shard, key, index=None):
    def change(records):
        target = records[2]["shards"][shard]
        if index is None:
            target[key] = "f" * 16
        else:
            target[key][index] = "f" * 16

    return change


@pytest.mark.parametrize(
    ("change", "shard", "tensor"),
    [
        (shard_change(0, "outputs", 1), 0, "output of layer 'b'"),
        (shard_change(1, "loss"), 1, "loss"),
        (shard_change(1, "gradients", 0), 1, "gradient of layer 'a'"),
        (lambda r: r[2]["state"].__setitem__(1, "f" * 16), None, "parameter 'a.weight'"),
    ],
)
def test_first_tensor_that_parts(tmp_path, whole, change, shard, tensor):
    records = [header(), *(record(step) for step in (1, 2, 3))]
    change(records)
    records[3]["state"][0] = "e" * 16  # later, so not named
    result = audit(whole, write(tmp_path / "b.jsonl", records))
    assert result.steps == 1
    assert result.parting is not None
    assert (result.parting.step, result.parting.shard, result.parting.tensor) == (2, shard, tensor)
    assert result.parting.hashes[1] == "f" * 16


def test_order_inside_a_shard_is_that_of_computation(tmp_path, whole):
    records = [header(), record(1)]
    records[1]["shards"][0] = {
        "outputs": ["f" * 16] * 2,
        "loss": "f" * 16,
        "gradients": ["f" * 16] * 2,
    }
    found = []
    for _ in range(5):
        parting = audit(whole, write(tmp_path / "b.jsonl", records)).parting
        assert parting is not None
        found.append(parting.tensor)
        good, bad = record(1)["shards"][0], records[1]["shards"][0]
        if parting.tensor == "loss":
            bad["loss"] = good["loss"]
        else:
            key = "outputs" if parting.tensor.startswith("output") else "gradients"
            index = LAYERS.index(parting.tensor[-2])
            bad[key][index] = good[key][index]
    assert found == [
        *("output of layer 'a'", "output of layer 'b'", "loss"),
        *("gradient of layer 'b'", "gradient of layer 'a'"),
    ]
    assert audit(whole, write(tmp_path / "b.jsonl", records)).parting is None


def test_initial_state(tmp_path, whole):
    other = header()
    other["state"][0] = "f" * 16
    result = audit(whole, write(tmp_path / "b.jsonl", [other, record(1)]))
    assert result.parting == TrainingParting(0, None, "parameter 'a.bias'", (text(0), "f" * 16))


def test_a_trace_of_any_version_is_known_as_one(tmp_path, whole):
    assert is_training_trace(whole)
    stated = {"format": "samebits-training-trace-2"}
    assert is_training_trace(write(tmp_path / "b.jsonl", [{**header(), **stated}]))
    assert not is_training_trace(write(tmp_path / "b.jsonl", [{"format": "samebits-trace-1"}]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": {"lr": 0.2, "seed": 3}}, "other options: lr: expected 0.1, found 0.2"),
        ({"layers": ["a", "c"]}, "found other names of layers"),
        ({"parameters": ["a.bias", "x"]}, "found other names of parameters"),
        ({"parameters": ["a.bias"]}, "expected the header"),
        ({"format": "x"}, "expected the header"),
        (
            {"format": "samebits-training-trace-2"},
            "b.jsonl: expected format 'samebits-training-trace-1' of samebits, found "
            "'samebits-training-trace-2'; use the release of samebits that wrote it, or trace",
        ),
        ({"step": True}, "expected the header"),
        ({"run": []}, "expected the header"),
        ({"layers": [1, 2]}, "expected the header"),
        ({"state": ["f" * 16, "F" * 16]}, "expected the header"),
    ],
)
def test_other_headers(tmp_path, whole, changes, message):
    with pytest.raises(InputError, match=message):
        audit(whole, write(tmp_path / "b.jsonl", [{**header(), **changes}, record(1)]))


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[" * 5000, "[]", "{}", "null"),
        json.dumps({**record(1), "step": 2}),
        json.dumps({**record(1), "shards": [3]}),
        json.dumps({**record(1), "shards": None}),
        json.dumps({**record(1), "state": ["f" * 16]}),
        json.dumps({**record(1), "state": ["f" * 15, 3]}),
        json.dumps({**record(1), "shards": [{**record(1)["shards"][0], "loss": []}]}),
        json.dumps({**record(1), "shards": [{"outputs": [None] * 2, "gradients": [None] * 2}]}),
        json.dumps({**record(1), "shards": [{**record(1)["shards"][0], "outputs": []}]}),
    ],
)
def test_damaged_lines(tmp_path, whole, line):
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps(header()) + "\n" + line + "\n")
    with pytest.raises(InputError, match=r"b\.jsonl: (line|expected the hashes of step 1)"):
        audit(whole, path)


def test_long_lines_take_no_memory(tmp_path, whole):
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps(header()) + "\n" + " " * (LONGEST_LINE + 1))
    with pytest.raises(InputError, match="line 1 is longer than 16777216 bytes"):
        audit(whole, path)


def test_other_numbers_of_shards(tmp_path, whole):
    one = record(1)
    one["shards"].pop()
    with pytest.raises(InputError, match="step 1: expected equally many shards, found 2 and 1"):
        audit(whole, write(tmp_path / "b.jsonl", [header(), one]))
