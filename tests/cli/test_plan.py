import json

import pytest

from samebits.recompute.plan.cost import parse_device


@pytest.fixture(params=[pytest.param("float32", marks=pytest.mark.slow), "bfp"])
def numerics(request):
    return request.param


def train(npz, out, numerics, *more):
    return (
        *("train", "--data", npz, "--arch", "resnet8", "--numerics", numerics, "--epochs", 1),
        *("--batch", 16, "--shards", 2, "--lr", 0.05, "--limit", 32, "--out", out, "--json", *more),
    )


def plan(numerics, *more):
    return (
        *("plan", "--arch", "resnet8", "--batch", 16, "--shards", 2, "--numerics", numerics),
        *("--input", "1,6,6", "--classes", 3, *more),
    )


def test_training_under_a_plan_gives_the_same_parameters(samebits, npz, tmp_path, numerics):
    traces = [tmp_path / f"{name}.jsonl" for name in ("none", "budget", "paired")]
    stored = samebits(*train(npz, tmp_path / "none", numerics, "--trace", traces[0]))
    stored = json.loads(stored.out)
    assert stored["plan"] is None
    everything = json.loads(samebits(*plan(numerics, "--json")).out)
    budget = (everything["smallest"] + everything["store_all"]) // 2
    done = samebits(
        *plan(numerics, "--memory-budget", budget, "--out", tmp_path / "plan.json"),
        *("--picture", tmp_path / "plan.svg"),
    )
    assert done.code == 0
    assert done.out.endswith(
        f"written: {tmp_path / 'plan.json'}\nwritten: {tmp_path / 'plan.svg'}\n"
    )
    share = json.loads(samebits(*plan(numerics, "--memory-budget", "99%", "--json")).out)
    assert share["budget"] == 99 * everything["store_all"] // 100
    assert "dropped" in done.out
    assert "load balance" not in done.out
    paired = samebits(*plan(numerics, "--backward", "paired"))
    if numerics == "bfp":
        assert "(load balance 0." in paired.out
    else:
        refused(paired, "--backward paired: expected numerics bfp, whose gradients of weights are")
    assert f"% of the {everything['store_all']:,} with everything stored" in done.out
    assert (tmp_path / "plan.svg").read_bytes().count(b"<svg") == 1
    limits = {"auto": everything["store_all"], "paired": 2 * everything["store_all"]}
    for name, options in (
        ("auto", ("--plan", "auto", "--plan-device", "server-gpu")),
        ("budget", ("--memory-budget", budget, "--trace", traces[1])),
        ("file", ("--plan", tmp_path / "plan.json")),
        ("paired", ("--plan", "auto", "--backward", "paired", "--trace", traces[2])),
    )[: 4 if numerics == "bfp" else 3]:
        out = tmp_path / name
        planned = json.loads(samebits(*train(npz, out, numerics, *options)).out)
        assert planned["sha256"] == stored["sha256"]
        assert planned["plan"]["store_all_bytes"] == everything["store_all"]
        assert planned["plan"]["peak_bytes"] <= limits.get(name, budget)
        paired = name == "paired"
        if name not in ("paired", "auto"):  # by the rule everything may be worth its load
            assert planned["plan"]["recomputed"] > 0
        assert planned["plan"]["backward"] == ("paired" if paired else "sequential")
        assert (planned["plan"]["load_balance"] > 0.5) == paired
    assert len({trace.read_text() for trace in traces if trace.exists()}) == 1


def test_a_run_goes_on_under_another_plan(samebits, npz, tmp_path, numerics):
    whole = json.loads(samebits(*train(npz, tmp_path / "whole", numerics)).out)
    least = json.loads(samebits(*plan(numerics, "--json")).out)["smallest"]
    out = tmp_path / "parts"
    more = ("--checkpoint-every", 1, "--plan", "auto", "--memory-budget", least)
    samebits(*train(npz, out, numerics, *more))
    last = sorted(out.glob("checkpoint-*"))[-1]
    last.unlink()
    resumed = json.loads(samebits(*train(npz, out, numerics, "--resume")).out)
    assert resumed["sha256"] == whole["sha256"]


def refused(done, text):
    assert done.code == 2
    assert done.out == "" or json.loads(done.out).keys() == {"error", "explain"}
    assert "Traceback" not in done.err
    assert text in done.err


def test_a_device_that_does_not_hold_the_pass(samebits, tmp_path):
    """A peak that no memory of the device holds is no plan for it, whoever asks."""
    device = tmp_path / "small.toml"
    tier = '[[tier]]\nname = "SRAM"\nbytes = 65536\nbytes_per_second = 1000000\nlatency_ns = 0\n'
    device.write_text(
        'name = "small"\ninteger_operations_per_second = 1\nfloat_operations_per_second = 1\n'
        f"pointwise_operations_per_second = 1\ndispatch_ns = 0\noverhead_ns = 0\n{tier}"
    )
    full = json.loads(samebits(*plan("bfp", "--json")).out)["store_all"]
    words = "small: expected a pass of at most 65536 bytes (its largest memory, SRAM), found a peak"
    advice = "give --memory-budget 65536 or less, lower --batch or give more --shards"
    refused(samebits(*plan("bfp", "--plan-device", device)), words)
    done = samebits(*plan("bfp", "--plan-device", device, "--memory-budget", full))
    refused(done, f"{words} of {full}; {advice}")
    done = samebits(*plan("bfp", "--plan-device", device, "--memory-budget", 65536))
    refused(done, "--memory-budget: expected at least ")


def test_a_limit_of_time(samebits):
    done = samebits(*plan("bfp", "--memory-budget", "99%", "--time-limit", "60", "--json"))
    assert json.loads(done.out)["search"] in ("complete", "steps")
    refused(samebits(*plan("bfp", "--time-limit", 60)), "--time-limit needs --memory-budget, found")
    more = ("--memory-budget", "99%", "--time-limit")
    for wrong in ("0", "-1", "nan"):
        refused(samebits(*plan("bfp", *more, wrong)), "--time-limit: expected seconds above 0")


def test_plans_for_several_devices_beside_each_other(samebits, tmp_path):
    named = plan("bfp", "--compare", "laptop-cpu,accelerator-core")
    text = samebits(*named).out
    assert "laptop CPU" in text
    assert "small accelerator core" in text
    record = json.loads(samebits(*named, "--json").out)
    single = [
        json.loads(samebits(*plan("bfp", "--plan-device", name, "--json")).out)
        for name in ("laptop-cpu", "accelerator-core")
    ]
    assert record["plans"] == single
    layers = zip(*(made["layers"] for made in single), strict=True)
    stored = [[layer["stored"] for layer in pair] for pair in layers]
    assert record["different"] == [at for at, (a, b) in enumerate(stored) if a != b]
    done = samebits(*named, "--out", tmp_path / "plan.json")
    refused(done, "--compare: expected one plan for --out or --picture, found several")
    refused(samebits(*plan("bfp", "--compare", "laptop-cpu,none")), "none")


def test_inspect_shows_a_plan(samebits, tmp_path):
    made = samebits(*plan("bfp", "--out", tmp_path / "plan.json"))
    shown = samebits("inspect", tmp_path / "plan.json", "--nodes")
    assert shown.code == 0
    _, table, figures = made.out.rpartition("\nwritten: ")[0].split("\n\n")
    assert shown.out.endswith(f"\n{figures}\n\n{table}\n")
    assert f"\n{figures}\n" in samebits("inspect", tmp_path / "plan.json").out
    record = json.loads(samebits("inspect", tmp_path / "plan.json", "--json").out)
    assert record["kind"] == "plan"
    assert record["layers"] == json.loads((tmp_path / "plan.json").read_text())["layers"]
    for text, message in (
        ("{}", "found a file ending in .json that states no format of samebits"),
        ('{"format": "samebits-plan-2"}', "field layers: expected a list of objects"),
        ('{"format": "samebits-plan-9"}', "field format: expected 'samebits-plan-2'"),
    ):
        (tmp_path / "plan.json").write_text(text)
        refused(samebits("inspect", tmp_path / "plan.json"), message)


def test_bad_plans_are_refused(samebits, npz, tmp_path):
    samebits(*plan("bfp", "--out", tmp_path / "plan.json"))
    file = ("--plan", tmp_path / "plan.json")
    refused(
        samebits(*train(npz, tmp_path / "a", "bfp", *file, "--arch", "resnet20")),
        "plan.json: this plan is for another model or batch: sub-layer 8 (3.first.0): expected",
    )
    refused(
        samebits(*train(npz, tmp_path / "b", "bfp", *file, "--batch", 32)),
        "sub-layer 0 (input): expected shape [8, 1, 6, 6], found [16, 1, 6, 6]",
    )
    refused(
        samebits(*train(npz, tmp_path / "c", "float32", *file)),
        "expected a plan for numerics float32, found bfp",
    )
    refused(
        samebits(*train(npz, tmp_path / "d", "bfp", *file, "--memory-budget", 10)),
        "--memory-budget needs --plan auto",
    )
    refused(
        samebits(*train(npz, tmp_path / "e", "bfp", *file, "--backward", "paired")),
        "expected a plan for --backward paired, found sequential",
    )
    refused(
        samebits(*train(npz, tmp_path / "f", "bfp", "--backward", "paired")),
        "--backward paired needs a plan, found --plan none",
    )
    refused(
        samebits(*plan("bfp", "--backward", "sideways")), "--backward: expected one of sequential"
    )
    assert not any((tmp_path / name).exists() for name in "abcdef")
    refused(samebits(*plan("bfp", "--memory-budget", 1)), "expected at least")
    refused(samebits(*plan("bfp", "--input", "1,x")), "--input: expected sizes such as 3,32,32")
    refused(samebits(*plan("bfp", "--plan-device", "abacus")), "abacus: no such device")
    assert samebits(*plan("bfp", "--arch", "lstm")).code == 0  # an operation may give two values


def test_the_machine_as_a_device(samebits, tmp_path):
    done = samebits("device", "--out", tmp_path / "here.toml")
    text = (tmp_path / "here.toml").read_text()
    assert (done.code, done.out) == (0, f"{text}written: {tmp_path / 'here.toml'}\n")
    parse_device(text, "here")
    found = samebits(*plan("bfp", "--plan-device", tmp_path / "here.toml", "--json"))
    assert found.code == 0
    (tmp_path / "here.toml").write_text("name = 3")
    refused(
        samebits(*plan("bfp", "--plan-device", tmp_path / "here.toml")), "here.toml: field tier"
    )


def test_devices_are_named_once(samebits):
    given = ("plan", "--arch", "mlp", "--plan-device", "laptop-cpu", "--compare", "laptop-cpu")
    done = samebits(*given)
    assert done.code == 2
    assert "--plan-device: expected none beside --compare, which names devices" in done.err
