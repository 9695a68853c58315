"""Runs on another device than the CPU: a double of one that catches what was left behind."""

import pytest
import torch
from torch import nn

from device_double import DEVICE, Attached, tensor
from samebits.data import Dataset
from samebits.errors import InputError
from samebits.numerics import philox
from samebits.recompute.plan.cost import find_device
from samebits.recompute.training import Planner
from samebits.train.run.checkpoint import list_checkpoints, parameter_sha256, read_checkpoint
from samebits.train.run.config import TrainConfig
from samebits.train.run.device import CPU, device_of, run_device
from samebits.train.run.evaluate import count_correct, final_classifier
from samebits.train.run.loop import Silent, train
from samebits.train.run.record import RESULT, read_json
from samebits.train.run.restore import open_checkpoint, restore_engine
from worker_threads import Hub

CLASSES = ("a", "b", "c")


def data():
    words = philox.words(72 * 36, (1, 7)) % 256
    images, labels = words.view(72, 1, 6, 6).to(torch.uint8), torch.arange(72) % 3
    return Dataset(images[:48], labels[:48], images[48:], labels[48:], CLASSES, "made")


DATA = data()


@pytest.fixture(autouse=True)
def tensors_from_data(monkeypatch):
    monkeypatch.setattr(torch, "tensor", tensor)


class Log(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


class Everything(nn.Module):
    """A layer of every kind, but those of vectors."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.wide = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.body = nn.Sequential(nn.ReLU6(), nn.Dropout(0.2), nn.MaxPool2d(2), nn.Tanh())
        self.pool = nn.AvgPool2d(3)
        self.steps = nn.LSTM(6, 5, batch_first=True)
        self.hidden = nn.Sequential(nn.Linear(4 + 5, 8), nn.BatchNorm1d(8), nn.LeakyReLU())
        self.out = nn.Linear(8, len(CLASSES))

    def forward(self, x):
        y = self.stem(x)
        y = self.pool(self.body(self.wide(y) + y)).flatten(1)
        last = self.steps(x.reshape(-1, 6, 6))[0][:, -1]
        return self.out(self.hidden(torch.cat([y, last], 1)))


class Rows(nn.Module):
    """Layers of vectors."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(36, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, len(CLASSES))

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.lift(x.flatten(1)))))


MODELS = {"everything": Everything, "rows": Rows}
RUNS = {
    "sgd": ("everything", {"nesterov": True, "weight_decay": 0.001, "augment": "flip,crop:1"}),
    "adam": ("everything", {"optimizer": "adam", "lr": 0.003, "weight_decay": 0.01}),
    "short": ("everything", {"gradient_bits": 16, "shards": 4}),
    "rows": ("rows", {"exponents": "row-shift"}),
}


def run(out, name, device=CPU, **more):
    model, changes = RUNS[name]
    options = {"data": "made", "arch": model, "epochs": 1, "batch": 16, "shards": 2, "lr": 0.05}
    config = TrainConfig(**{**options, **changes})
    more = {"checkpoint_every": 2, **more}
    with Attached():
        return train(config, DATA, out, model=MODELS[model](), device=device, **more)


def shown(result):
    """A result without its times."""
    return {**result.to_dict(), "step_seconds_median": None}


def test_the_double_tells_devices_apart():
    with Attached():
        there, here = torch.arange(4.0).to(DEVICE), torch.arange(4.0)
        assert there.device == DEVICE
        assert torch.equal((there * 2 + torch.ones(4, device=DEVICE)).cpu(), here * 2 + 1)
        assert torch.equal((there + torch.tensor(1.0)).cpu(), here + 1)
        for mixed in (lambda: there + here, lambda: torch.cat([there, here]), lambda: here @ there):
            with pytest.raises(RuntimeError, match=r"found (lazy|cpu) .*, (lazy|cpu)"):
                mixed()
        with pytest.raises(RuntimeError):
            there.numpy()
        layer = nn.Linear(4, 1).to(DEVICE)
        assert device_of(layer) == DEVICE
        layer(there[None]).sum().backward()
        assert torch.equal(layer.weight.grad.cpu()[0], here)


@pytest.mark.parametrize(
    "name",
    [n if n == "rows" else pytest.param(n, marks=pytest.mark.slow) for n in RUNS],
)
def test_result_trace_and_files_are_those_of_the_cpu(tmp_path, name):
    results = [
        run(tmp_path / place.type, name, place, trace=tmp_path / f"{place.type}.jsonl")
        for place in (CPU, DEVICE)
    ]
    assert shown(results[0]) == shown(results[1])
    assert (tmp_path / "cpu.jsonl").read_text() == (tmp_path / "lazy.jsonl").read_text()
    for here, there in zip(
        *(list_checkpoints(tmp_path / place) for place in ("cpu", "lazy")), strict=True
    ):
        assert here.read_bytes() == there.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "places"), [("sgd", (CPU, DEVICE)), ("adam", (DEVICE, CPU))])
def test_a_run_goes_on_on_another_device(tmp_path, name, places):
    whole = run(tmp_path / "whole", name)
    run(tmp_path / "run", name, places[0])
    (tmp_path / "run" / "checkpoint-00000003.safetensors").unlink()
    assert run(tmp_path / "run", name, places[1], resume=True).sha256 == whole.sha256


@pytest.mark.slow
@pytest.mark.parametrize("bits", [16, 32])
def test_several_workers(tmp_path, bits):
    name = "sgd" if bits == 32 else "short"
    alone = run(tmp_path / "alone", name)

    def body(worker):
        out = tmp_path / "two"
        return run(out, name, DEVICE, workers=worker)

    for result in Hub(2).run(body):
        assert result.sha256 == alone.sha256


@pytest.mark.slow
def test_a_plan(tmp_path):
    config = TrainConfig(data="made", arch="resnet8", epochs=1, batch=16, shards=2)
    planner = Planner(config, find_device("server-gpu"))
    whole = train(config, DATA, tmp_path / "whole", trace=tmp_path / "whole.jsonl")
    with Attached():
        planned = train(
            *(config, DATA, tmp_path / "run"),
            device=DEVICE,
            trace=tmp_path / "run.jsonl",
            planner=planner,
        )
    assert planned.plan is not None
    assert planned.plan["recomputed"] > 0
    assert planned.sha256 == whole.sha256
    assert (tmp_path / "run.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_float32(tmp_path):
    """Its bits may be others there; what it leaves can be read and resumed here."""
    options = {"data": "made", "arch": "resnet8", "numerics": "float32", "epochs": 1, "batch": 16}
    config, last = TrainConfig(**options), tmp_path / "checkpoint-00000003.safetensors"
    with Attached():
        train(config, DATA, tmp_path, device=DEVICE, checkpoint_every=2)
    assert (
        parameter_sha256(read_checkpoint(last).model) == read_json(last.parent / RESULT)["sha256"]
    )
    last.unlink()
    log = Log()
    assert train(config, DATA, tmp_path, resume=True, reporter=log).steps == 3
    assert log.lines == [f"{list_checkpoints(tmp_path)[0]}: resuming after step 2"]
    assert last.exists()


def test_evaluation(tmp_path):
    options = {"data": "made", "arch": "cnn", "epochs": 1, "batch": 16, "shards": 2}
    with Attached():
        train(TrainConfig(**options), DATA, tmp_path / "run")
        path, checkpoint = open_checkpoint(tmp_path / "run", print)
        counts, logits = [], []
        for place in (CPU, DEVICE):
            engine = restore_engine(path, checkpoint, DATA, device=place)
            assert device_of(engine.model) == place
            classifier, arithmetic = final_classifier(engine, checkpoint.exponents)
            assert arithmetic == "deployed"
            counts.append(count_correct(classifier, DATA))
            images = DATA.batch("test", torch.arange(8))
            logits.append([c.logits(images) for c in (classifier, engine)])
    assert counts[0] == counts[1]
    for here, there in zip(*logits, strict=True):
        assert torch.equal(here, there)


def test_devices_that_are_not_there(monkeypatch):
    assert run_device("cpu") == CPU
    with pytest.raises(InputError, match="expected --device among cpu, cuda, found 'gpu'"):
        run_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError) as caught:
        run_device("cuda")
    assert "expected a GPU for --device cuda, found none (torch" in str(caught.value)
    assert "give --device cpu" in str(caught.value)


def test_every_worker_has_a_gpu_of_its_own(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert run_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert run_device("cuda") == torch.device("cuda", 1)
    assert chosen == [0, 1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match=r"found 2 for worker 3; .* --nproc-per-node 2"):
        run_device("cuda")
