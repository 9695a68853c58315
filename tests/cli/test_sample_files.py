"""Files and folders as samples, and the options of reading them; `eval --whole`."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from PIL import Image

import samebits as sb
from recordings import tone, write_wav
from samebits.data import load
from samebits.errors import InputError
from samebits.recipes import Reading
from tiny_models import float_file

ROWS = 60


@pytest.fixture
def table(tmp_path):
    """Four features, of which b stands last, after the labels p and q."""
    pytest.importorskip("pandas", reason="tables are read by pandas")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4))
    columns = [*x[:, :3].T, x[:, 0] + 0.5, x[:, 1] - x[:, 2], x[:, 3]]
    lines = [",".join(f"{v:.4f}" for v in row) for row in np.array(columns).T]
    path = tmp_path / "t.csv"
    path.write_text("a1,a2,a3,p,q,b\n" + "\n".join(lines) + "\n")
    return path


def test_a_table_as_samples(samebits, tmp_path, table):
    model, q = float_file(tmp_path / "net.onnx", (1, 4)), tmp_path / "q.onnx"
    how = ("--data", table, "--out", q)
    done = samebits("quantize", model, *how)
    assert done.code == 2
    assert "expected samples of shape [4] for the input 'x', found [5]" in done.err
    left = f"note: {table}: all columns but {{}}, its labels (--target names others), in the scales"
    assert left.format("b") in done.err

    done = samebits("quantize", model, *how, "--target", "p, q")
    assert done.code == 0, done.err
    assert left.format("p, q") in done.err
    named = (q, "--data", table, "--target", "p,q")
    done = samebits("verify", *named, "--backends", "torch")
    assert (done.code, done.out.splitlines()[-1]) == (0, "same bits: yes"), done.err
    assert left.format("p, q") in done.err
    assert samebits("trace", *named, "--out", tmp_path / "new" / "t.json").code == 0
    done = samebits("report", *named, "--out", tmp_path / "other" / "page.html")
    assert done.code == 0, done.err
    page = (tmp_path / "other" / "page.html").read_text(encoding="utf-8")
    assert f"samebits verify {q} --data {table} --backends torch" in page
    assert "--target p,q" in page
    done = samebits(
        *("ship", model, "--data", table, "--target", "p,q", "--backends", "torch"),
        *("--out", tmp_path / "c"),
    )
    assert done.code == 0, done.err


def test_a_table_for_its_run(samebits, tmp_path, caplog):
    """Other orders of columns, without labels, as an array, and as a network in memory."""
    pandas = pytest.importorskip("pandas", reason="tables are read by pandas")
    caplog.set_level("INFO", "samebits")
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame(rng.normal(40, 5, (90, 3)), columns=list("abc"))
    frame["y"] = np.where(frame["a"] > frame["b"], "more", "less")
    one, other, new = (tmp_path / f"{name}.csv" for name in ("one", "other", "new"))
    frame.to_csv(one, index=False)
    frame[["y", "c", "b", "a"]].to_csv(other, index=False)
    frame[["b", "c", "a"]].to_csv(new, index=False)
    sb.fit(one, "mlp", tmp_path / "run", sb.Training(epochs=4, batch=16), sb.Execution(threads=1))
    net = sb.load(tmp_path / "run")
    scores = [
        sb.evaluate(source, data) for source in (tmp_path / "run", net) for data in (one, other)
    ]
    assert len({(score.correct, score.total) for score in scores}) == 1
    (wanted,) = net.run(one).values()
    assert len(wanted) == 90
    for given in (other, new, frame[["c", "a", "b"]]):
        np.testing.assert_array_equal(*net.run(given).values(), wanted)
    assert "not the data of the run" not in caplog.text

    raw = frame[["a", "b", "c"]].to_numpy(np.float32)
    np.savez(tmp_path / "raw.npz", x=raw)
    floats = sb.load(
        sb.fit(
            one,
            "mlp",
            tmp_path / "floats",
            sb.Numerics(numerics="float32"),
            sb.Training(epochs=1),
            sb.Execution(threads=1),
        ).folder
    )
    assert sb.quantize(floats, one).verify(new, ["torch"])

    def quantized(given):
        return sb.quantize(floats, given)

    for use in (net.run, net.verify, net.trace, net.report, floats.run, quantized):
        with pytest.raises(InputError, match="expected rows that are standardised as in training"):
            use(raw)
        other_scales = load(str(other), options=Reading("y"))
        with pytest.raises(InputError, match="expected rows and targets in the scales of training"):
            use(other_scales)
    assert net.verify(sb.prepared(raw), ["torch"])
    how = ("verify", tmp_path / "run", "--backends", "torch", "--data")
    done = samebits(*how, tmp_path / "raw.npz")
    assert (done.code, "--prepared takes them as they are" in done.err) == (2, True)
    done = samebits(*how, tmp_path / "raw.npz", "--prepared")
    assert done.code == 0, done.err
    assert "lie beyond" in done.err
    done = samebits(*how, new, "--json")
    assert json.loads(done.out)["samples"] == 90, done.err


def test_data_that_need_not_be_that_of_the_run(samebits, tmp_path):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    np.savez(tmp_path / "one.npz", x=x, y=y)
    np.savez(tmp_path / "mixed.npz", x=x[::-1], y=y[::-1])
    sb.fit(
        tmp_path / "one.npz",
        "mlp",
        tmp_path / "run",
        sb.Training(epochs=1, batch=16),
        sb.Execution(threads=1),
    )
    told = "not the data of the run, by its hash: some of the rows that are counted may be among"
    assert told not in samebits("eval", tmp_path / "run", "--data", tmp_path / "one.npz").err
    assert told in samebits("eval", tmp_path / "run", "--data", tmp_path / "mixed.npz").err


def test_a_file_without_a_contract_knows_no_names_of_classes(samebits, tmp_path):
    pandas = pytest.importorskip("pandas", reason="tables are read by pandas")
    frame = pandas.DataFrame(np.random.default_rng(1).normal(size=(90, 3)), columns=list("abc"))
    frame["y"] = [("less", "more", "same")[i % 3] for i in range(90)]
    frame.to_csv(tmp_path / "three.csv", index=False)
    frame[frame["y"] != "less"].to_csv(tmp_path / "two.csv", index=False)
    sb.fit(
        tmp_path / "three.csv",
        "mlp",
        tmp_path / "run",
        sb.Training(epochs=1, batch=16),
        sb.Execution(threads=1),
    )
    sb.load(tmp_path / "run").save(tmp_path / "net.onnx")
    bare = onnx.load(tmp_path / "net.onnx")
    del bare.metadata_props[:]
    onnx.save(bare, tmp_path / "bare.onnx")
    told = "2 classes, more, same, for 3 outputs, of which the first ones are taken for them"
    for model, data, said in (
        *(("bare.onnx", "two.csv", True), ("bare.onnx", "three.csv", False)),
        *(("net.onnx", "two.csv", False), ("run", "two.csv", False)),
    ):
        done = samebits("eval", tmp_path / model, "--data", tmp_path / data)
        assert (done.code, told in done.err) == (0, said), done.err


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ("samples", "--target does not apply to an archive of inputs"),
        ("random:3", "random:3: --target does not apply to random samples"),
        ("digits", "digits: --target does not apply to digits"),
    ],
)
def test_a_target_of_other_samples(samebits, shelf, inputs, told):
    done = samebits("verify", shelf["quantized"], "--data", shelf.get(inputs, inputs),
                    "--target", "y")  # fmt: skip
    assert done.code == 2
    assert told in done.err


def test_a_quantized_network_takes_no_target(samebits, shelf, tmp_path):
    done = samebits("ship", shelf["quantized"], "--target", "y", "--out", tmp_path / "c")
    assert done.code == 2
    assert done.err.startswith("error: --target does not apply to ")


@pytest.mark.parametrize("kind", ["images", "recordings"])
def test_a_folder_without_classes(samebits, tmp_path, kind):
    folder = tmp_path / "unsorted"
    folder.mkdir()
    for index in range(5):
        if kind == "images":
            pixels = np.random.default_rng(index).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
        else:
            write_wav(folder / f"{index}.wav", tone(index))
    shape = (1, 1, 8, 8) if kind == "images" else (1, 7, 32)
    model, q = float_file(tmp_path / "net.onnx", shape), tmp_path / "q.onnx"
    done = samebits("quantize", model, "--data", folder, "--out", q)
    assert done.code == 0, done.err
    assert "5 samples" in done.out
    done = samebits("verify", q, "--data", folder, "--backends", "torch", "--json")
    assert json.loads(done.out)["samples"] == 5
    done = samebits(
        *("ship", model, "--data", folder, "--backends", "torch"),
        *("--out", tmp_path / "c"),
    )
    assert done.code == 0, done.err
    done = samebits("train", "--data", folder, "--arch", "mlp", "--out", tmp_path / "run")
    assert "expected at least 2 class folders of images or recordings, found 0" in done.err


@pytest.fixture
def photos(tmp_path):
    """Images of several sizes and colours, without classes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for index, (size, kind) in enumerate(((40, "RGB"), (17, "L"), (24, "RGB"), (9, "RGB"))):
        pixels = np.random.default_rng(index).integers(0, 256, (size, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).convert(kind).save(folder / f"{index}.png")
    return folder


def test_photos_as_samples(samebits, tmp_path, photos):
    model, q = float_file(tmp_path / "net.onnx", (1, 1, 8, 6)), tmp_path / "q.onnx"
    how = ("--data", photos, "--out", q)
    done = samebits("quantize", model, *how)
    assert done.code == 2
    assert done.err.splitlines()[-1].endswith(
        "expected 30x40 RGB like " + str(photos / "0.png") + ", found 30x17 grey; convert the "
        "images, or give --resize HEIGHTxWIDTH and --colour grey or rgb to make them alike"
    )
    done = samebits("quantize", model, *how, "--resize", "9", "--colour", "rgb")
    assert done.code == 2
    assert done.err.splitlines()[-1].endswith(
        "expected samples of shape [1, 8, 6] for the input 'x', found [3, 9, 9]; give --resize 8x6 "
        "and --colour grey"
    )
    alike = ("--resize", "8x6", "--colour", "grey")
    done = samebits("quantize", model, *how, *alike)
    assert done.code == 0, done.err
    assert "4 samples" in done.out

    named = (q, "--data", photos, *alike)
    done = samebits("verify", *named, "--backends", "torch")
    assert (done.code, done.out.splitlines()[-1]) == (0, "same bits: yes"), done.err
    assert samebits("trace", *named, "--out", tmp_path / "t.json").code == 0
    done = samebits("report", *named, "--out", tmp_path / "page.html")
    assert done.code == 0, done.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"samebits verify {q} --data {photos} --backends" in page
    assert "--resize 8x6 --colour grey" in page
    done = samebits(
        *("ship", model, "--data", photos, *alike, "--backends", "torch"),
        *("--out", tmp_path / "c"),
    )
    assert done.code == 0, done.err


def test_values_of_pixels_are_those_of_the_network(samebits, tmp_path, photos):
    """A network that was trained elsewhere on other values is calibrated on them, and said so."""
    model, q = float_file(tmp_path / "net.onnx", (1, 3, 8, 8)), tmp_path / "q.onnx"
    alike = ("--resize", 8, "--colour", "rgb")
    normal = ("--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225")
    largest = []
    for more in ((), normal):
        done = samebits("quantize", model, "--data", photos, "--out", q, *alike, *more)
        assert done.code == 0, done.err
        assert ("pixels of 0 to 255 become values of -1 to 1" in done.err) == (not more)
        (value,) = sb.load(q).inputs
        low, high = -128 - value.quantization.zero_point, 127 - value.quantization.zero_point
        largest.append(float(max(-low, high) * value.quantization.scales[0]))
    assert largest[0] <= 1.01
    assert 1.5 < largest[1] < 2.7  # (1 - 0.406) / 0.225 is 2.64
    how = (q, "--data", photos, *alike)
    done = samebits("verify", *how, "--mean", "0.5", "--backends", "torch")
    assert done.code == 2
    assert "--mean, --std: expected both" in done.err
    done = samebits("verify", *how, *normal, "--backends", "torch")
    assert (done.code, done.out.splitlines()[-1]) == (0, "same bits: yes"), done.err


@pytest.fixture
def shades(tmp_path):
    """40 grey images of two classes, and the options of values beyond -1..1."""
    for index in range(40):
        pixels = np.random.default_rng(index).integers(0, 100, (4, 4), dtype=np.uint8)
        place = tmp_path / "shades" / ("dark", "light")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels + np.uint8(100 * (index % 2))).save(place / f"{index}.png")
    return tmp_path / "shades"


VALUES = ("--mean", "0.9", "--std", "0.125")
RUN = ("--arch", "mlp", "--batch", 8, "--epochs", 20, "--lr", 0.01)


def test_a_run_keeps_the_values_of_its_pixels(samebits, tmp_path, shades):
    """For a folder, for arrays of pixels and for a Dataset, and where it is resumed."""
    run = tmp_path / "run"
    done = samebits("train", "--data", shades, *RUN, *VALUES, "--out", run)
    assert done.code == 0, done.err
    done = samebits("train", "--data", shades, *RUN, "--out", run, "--resume")
    assert done.code == 2
    assert "belongs to another run: reading: expected None, found {'mean': [0.9]" in done.err

    data = load(str(shades), whole=True)
    assert data.options == Reading()
    arrays = {"x": data.test_images.numpy(), "y": data.test_labels.numpy()}
    np.savez(tmp_path / "arrays.npz", **arrays)
    found = {}
    for given in (shades, tmp_path / "arrays.npz"):
        done = samebits("eval", run, "--data", given, "--whole", "--json")
        found[given] = json.loads(done.out)["accuracy"]
        assert "become values of -1 to 1" not in done.err
    right = sb.evaluate(run, data).accuracy
    assert set(found.values()) == {right}
    assert right > 0.8
    np.savez(tmp_path / "reals.npz", x=data.values(data.test_images).numpy(), y=arrays["y"])
    done = samebits("eval", run, "--data", tmp_path / "reals.npz", "--whole", "--json")
    assert json.loads(done.out)["accuracy"] < 0.7, "reals are taken as they are"
    done = samebits("eval", run, "--data", tmp_path / "reals.npz", *VALUES)
    assert "--mean: expected images of whole numbers 0 to 255, found images of float32" in done.err


def test_a_network_of_a_run_reads_samples_as_it_did(samebits, tmp_path, shades):
    run, q = tmp_path / "run", tmp_path / "q.onnx"
    done = samebits(
        *("train", "--data", shades, *RUN, *VALUES, "--numerics", "float32", "--out", run)
    )
    assert done.code == 0, done.err
    done = samebits("quantize", run, "--data", shades, "--out", q)
    assert (done.code, "become values of -1 to 1" in done.err) == (0, False)
    for more in (VALUES, ()):  # the contract in its file says them
        done = samebits("eval", q, "--data", shades, "--whole", *more, "--json")
        assert json.loads(done.out)["accuracy"] > 0.8
        assert "become values of -1 to 1" not in done.err
    net = sb.load(run)
    named, given = net.run(shades), net.run(sb.read(shades, mean=0.9, std=0.125))
    assert all(np.array_equal(named[key], given[key]) for key in named)
    other = net.run(sb.read(shades, mean=0.5, std=0.5))
    assert not any(np.array_equal(named[key], other[key]) for key in named)


def test_classes_have_the_names_of_training(samebits, tmp_path, shades):
    done = samebits("train", "--data", shades, *RUN, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    (shades / "light").rename(shades / "aglow")
    done = samebits("eval", tmp_path / "run", "--data", shades)
    assert done.code == 2
    assert "expected the 2 classes of training, found 2: 'aglow' is in one alone" in done.err


def test_recordings_of_any_rate_as_samples(samebits, tmp_path):
    folder = tmp_path / "calls"
    folder.mkdir()
    for index, rate in enumerate((16000, 44100, 11025)):
        write_wav(folder / f"{index}.wav", tone(index), rate=rate)
    model, q = float_file(tmp_path / "net.onnx", (1, 7, 32)), tmp_path / "q.onnx"
    how = ("--data", folder, "--out", q)
    done = samebits("quantize", model, *how)
    assert done.code == 2
    assert "give --resample to bring all recordings to 16000" in done.err
    done = samebits("quantize", model, *how, "--resize", "8")
    assert done.code == 2
    assert f"{folder}: --resize does not apply to a folder of samples without classes" in done.err
    done = samebits("quantize", model, *how, "--resample")
    assert done.code == 0, done.err
    done = samebits("verify", q, "--data", folder, "--resample", "--backends", "torch", "--json")
    assert json.loads(done.out)["samples"] == 3


def test_eval_says_which_part_it_counts(samebits, tmp_path, table):
    run = ("train", "--data", table, "--target", "p,q", "--arch", "mlp", "--batch", 8)
    done = samebits(*run, "--epochs", 2, "--lr", 0.01, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    other = tmp_path / "other.csv"
    lines = table.read_text().splitlines()
    other.write_text("\n".join([lines[0], *lines[:20:-1]]) + "\n")  # 40 of the rows
    done = samebits("eval", tmp_path / "run", "--data", other, "--json")
    part = json.loads(done.out)["test_count"]
    assert 0 < part < 20
    note = f"note: {other}: {part} of 40 rows are for testing, and counted; --whole counts all\n"
    assert note in done.err
    done = samebits("eval", tmp_path / "run", "--data", other, "--whole", "--json")
    assert json.loads(done.out)["test_count"] == 40
    assert "--whole" not in done.err
    other.write_text("\n".join(lines[:2]) + "\n")
    done = samebits("eval", tmp_path / "run", "--data", other, "--whole", "--json")
    assert json.loads(done.out)["test_count"] == 1
    done = samebits("eval", tmp_path / "run", "--data", other, "--target", "q, p")
    assert done.code == 2
    assert done.err.endswith(
        "error: --target: expected p,q, the order of training, found q,p; give them in that order, "
        "or leave --target out\n"
    )
