import json
import shutil

import pytest
import torch
from torch import nn

import samebits as sb
from given_options import called
from samebits.errors import CheckpointError, InputError
from samebits.train.run import loop

OPTIONS = {"epochs": 1, "batch": 16, "lr": 0.05}


@pytest.fixture(scope="module")
def made(npz, tmp_path_factory):
    """A comparison of every kind of numerics, over two seeds, and its folder."""
    folder = tmp_path_factory.mktemp("compared")
    numerics = "float32,bfp,bfp:nearest,mxint8,msfp12"
    return called(
        sb.compare, data=npz, arch="cnn", out=folder, **OPTIONS, numerics=numerics, seeds=range(2)
    ), folder


@pytest.fixture
def command(npz, tmp_path):
    return (
        *("compare", "--data", npz, "--arch", "mlp", "--epochs", 1, "--batch", 16),
        *("--lr", 0.02, "--seeds", "3,4", "--out", tmp_path / "out"),
    )


def test_runs_are_those_of_fit(made, npz, tmp_path):
    comparison, folder = made
    assert len(comparison.runs) == 10
    for numerics in ("float32", "bfp"):
        own = called(
            sb.fit,
            data=npz,
            arch="cnn",
            out=tmp_path / numerics,
            **OPTIONS,
            numerics=numerics,
            seed=1,
        )
        run = comparison.run(numerics, 1)
        assert (run.accuracy, run.loss, run.sha256) == (
            own.accuracy,
            own.result.train_loss,
            own.sha256,
        )
        assert sb.load(folder / numerics / "1").kind != "firmware"
    hashes = {run.sha256 for run in comparison.runs if run.seed == 0}
    assert len(hashes) == 5


def test_emulated_runs_start_from_the_same_values(made, npz):
    """Initial values are a function of the seed, whatever wraps the layers."""
    config = json.loads((made[1] / "mxint8" / "0" / "config.json").read_text())
    assert (config["arch"], config["numerics"], config["seed"]) == ("Emulated", "float32", 0)


def test_finished_runs_are_not_repeated(made, npz, monkeypatch):
    comparison, folder = made

    def step(self, *arguments):
        raise AssertionError("a step was taken")

    monkeypatch.setattr(loop._Run, "_step", step)
    numerics = ("bfp", "float32", "msfp12")
    again = called(
        sb.compare, data=npz, arch="cnn", out=folder, **OPTIONS, numerics=numerics, seeds=(1,)
    )
    assert [run.numerics for run in again.runs] == ["bfp", "float32", "msfp12"]
    assert all(run == comparison.run(run.numerics, 1) for run in again.runs)
    with pytest.raises(CheckpointError, match=r"belongs to another run: lr: expected 0\.5, found"):
        called(sb.compare, data=npz, arch="cnn", out=folder, **OPTIONS | {"lr": 0.5}, seeds=(1,))


def test_a_run_that_was_stopped_goes_on(made, npz, tmp_path):
    _, folder = made
    for name in ("float32/0", "mxint8/0", "mxint8/1"):
        shutil.copytree(folder / name, tmp_path / name)
    (tmp_path / "mxint8/0/result.json").unlink()
    again = called(
        sb.compare,
        data=npz,
        arch="cnn",
        out=tmp_path,
        **OPTIONS,
        numerics="float32,mxint8",
        seeds=range(2),
    )
    assert all(run == made[0].run(run.numerics, run.seed) for run in again.runs)


class Counting(nn.Module):
    """A network with a state of its own: statistics."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(36), nn.Linear(36, 3)

    def forward(self, x):
        return self.out(self.norm(torch.flatten(x, 1)))


def test_a_module_is_left_as_it_is(npz, tmp_path):
    module = Counting()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    found = called(
        sb.compare,
        data=npz,
        arch=module,
        out=tmp_path,
        **OPTIONS,
        numerics="msfp16,float32",
        seeds=[5, 6],
    )
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())
    alone = called(sb.compare, data=npz, arch=module, out=tmp_path / "alone", **OPTIONS, seeds=[6])
    assert alone.run("float32", 6) == found.run("float32", 6)
    assert found.arch == "Counting"


def test_tables_for_texts(made, tmp_path):
    comparison, folder = made[0], tmp_path
    comparison.save(folder)
    frame = comparison.to_frame()
    rows = comparison.rows()
    assert list(frame.numerics) == [row.numerics for row in rows]
    assert list(frame.accuracy) == [row.accuracy for row in rows]
    markdown, latex = comparison.to_markdown(), comparison.to_latex()
    assert (folder / "comparison.md").read_text() == markdown
    assert (folder / "comparison.tex").read_text() == latex
    assert markdown.splitlines()[1] == "| --- | ---: | ---: | ---: | ---: |"
    shown = f"{100 * rows[0].accuracy:.2f}"
    assert markdown.splitlines()[2].startswith(f"| float32 | {shown} % |")
    assert rf"float32 & {shown} \% & " in latex
    assert latex.count(r"$\pm$") == 2 * (len(rows) - 1)
    assert latex.splitlines()[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_the_command(samebits, command, tmp_path):
    done = samebits(*command, "--numerics", "float32,mxint8")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[1] == "seeds 3, 4; the same initial values and data order in every numerics"
    assert [line.split()[0] for line in lines[3:6]] == ["numerics", "float32", "mxint8"]
    assert lines[-6:] == [
        f"written: {tmp_path / 'out' / 'comparison'}.{kind}"
        for kind in ("csv", "html", "json", "md", "svg", "tex")
    ]
    assert "mlp mxint8 seed 4 (4 of 4): epoch 1" in done.err
    again = samebits(*command, "--numerics", "float32,mxint8", "--json", "--quiet")
    assert (again.code, again.err) == (0, "")
    record = json.loads(again.out)
    assert record == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert record["options"]["batch"] == 16
    assert [row["numerics"] for row in record["table"]] == ["float32", "mxint8"]


def test_divergence_is_a_finding(samebits, npz, tmp_path):
    done = samebits(
        *("compare", "--data", npz, "--arch", "mlp", "--epochs", 2, "--batch", 16, "--quiet"),
        *("--lr", "1e30", "--seeds", "0", "--numerics", "float32,msfp12", "--out", tmp_path / "o"),
    )
    assert done.code == 0
    assert done.out.count("1 of 1 diverged") == 2
    assert "float32 seed 0: training diverged in step " in done.out


def test_an_interrupted_comparison_says_how_to_go_on(samebits, command, tmp_path, monkeypatch):
    def step(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop._Run, "_step", step)
    done = samebits(*command, "--quiet")
    assert (done.code, done.out, done.err) == (
        130,
        "",
        "interrupted; run again with the same options to go on from the checkpoints in "
        f"{tmp_path / 'out'}\n",
    )


KNOWN = "float32, bfp, bfp8, bfp16, msfp12, msfp13, msfp14, msfp15, msfp16, mxint8"
WRONG = [
    ("bfp,mxint8", "expected float32 among the entries, to compare with, found bfp,mxint8; add "),
    ("float32", "expected another entry beside float32, found none; add bfp"),
    ("float32,bfp,bfp", "expected every entry once, found bfp twice"),
    ("float32,msfp11", f"expected one of {KNOWN}, "),
    ("float32,bfp32", "expected at most 24 bits, which float32 holds, found 32"),
    ("float32,", "found ''"),
    ("float32,mxint8:row", "expected options for bfp alone, found 'mxint8:row'; give mxint8"),
    ("float32,bfp:quickly", "or bfp:{tensor,row,row-shift} (exponents), found 'bfp:quickly'"),
    ("float32,bfp:nearest:nearest", "expected rounding once, found 'bfp:nearest:nearest'"),
    (
        "float32,bfp:12,6,32",
        "'bfp:12,6,32': expected 4 to 8 bits for weights and activations, found 12",
    ),
    ("float32,bfp:8,16", "'bfp:8,16': expected three whole numbers, e.g. 8, 16, 32, found (8, 16)"),
]


@pytest.mark.parametrize(("numerics", "message"), WRONG, ids=[n for n, _ in WRONG])
def test_wrong_numerics(samebits, command, tmp_path, numerics, message):
    done = samebits(*command, "--numerics", numerics)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: numerics")
    assert message in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seeds", ["", "1..", "4..2", "a", "0,,1", "-1", "4294967296", "0..99999"])
def test_wrong_seeds(samebits, npz, tmp_path, seeds):
    done = samebits(
        *("compare", "--data", npz, "--arch", "mlp", "--out", tmp_path / "o", f"--seeds={seeds}")
    )
    assert done.code == 2
    assert done.err.startswith("error: --seeds: expected ")
    assert done.err.endswith(f"found {seeds!r}\n")


def test_seeds_that_repeat(npz, tmp_path):
    for seeds, found in (([1, 1], "1, 1"), ([], "none"), ([-1], "-1"), ([2**32], str(2**32))):
        with pytest.raises(InputError) as caught:
            sb.compare(npz, "mlp", tmp_path, seeds=seeds)
        assert str(caught.value) == (
            "seeds: expected different whole numbers from 0 to 4294967295, at least one, found "
            f"{found}"
        )


def test_not_under_torchrun(npz, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="expected one process, found several of torchrun"):
        sb.compare(npz, "mlp", tmp_path)
