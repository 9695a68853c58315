"""Parts of a network that train while the rest stands, beside the same parts in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from on_device import Device, batches, code_of, config, engine, network, state_of, train_beside
from samebits.data.digits import load_digits
from samebits.errors import InputError, UnsupportedError
from samebits.ondevice.state import from_bytes


def model_bits(run):
    """Every tensor of a model, as bytes by its name."""
    return {name: v.numpy().tobytes() for name, v in run.model.state_dict().items()}


def changed(run, before):
    """Names of the tensors that have other bits than before."""
    return {name for name, data in model_bits(run).items() if data != before[name]}


@pytest.mark.parametrize(
    ("name", "parts", "options"),
    [
        ("cnn", ["10"], {}),
        ("cnn", ["6", "10"], {"weight_decay": 0.001}),
        ("cnn", ["0.0"], {"optimizer": "adam", "lr": 0.01}),
        ("chain", ["*.bias"], {"nesterov": True, "lr": 0.3}),
        ("chain", ["3.weight", "10.bias"], {"clip_norm": 0.01}),
        ("shared", ["first"], {"lr": 0.3}),
        ("resnet", ["4", "8"], {}),
        ("resnet", ["2.second.*", "4.shortcut.1.weight"], {"lr": 0.3}),
        ("mobile", ["4.body.0.*", "9"], {}),
        ("mobile", ["3"], {"optimizer": "adam", "lr": 0.01}),
        ("dropout", ["4"], {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01}),
    ],
)
def test_parts_train_and_the_rest_stands(tmp_path, name, parts, options):
    chosen = config(**options)
    run = engine(network(name), chosen)
    for step, batch in enumerate(batches(2, 8, 1)):  # running statistics and vectors with bits
        run.step(batch, 0.05, step)
    run = fresh(run, chosen, name)
    run.train_only(parts)
    before = model_bits(run)
    device = train_beside(run, chosen, tmp_path, 5, "-O1", short=True)
    trained = {held.parameter.name for held in device.places.parameters}
    moved = {s.name for s, _ in device.places.statistics}
    assert {n.rpartition(".")[0] for n in changed(run, before) - moved} <= trained
    assert {f"{device.places.parameters[-1].parameter.name}.delayed", *moved} <= changed(
        run, before
    )
    images = load_digits()
    images = images.values(images.images("test")[:3])
    found = np.stack([device.run(image) for image in images])
    assert np.array_equal(found, run.logits(images).numpy())


def fresh(run, options, name):
    """A run at step 0 with the weights and statistics of another."""
    made = engine(network(name), options)
    made.model.load_state_dict(run.model.state_dict())
    return made


def test_parameters_frozen_by_hand_leave_norms_in_training(tmp_path):
    """As in PyTorch: statistics move, which have a mode of their own."""
    options = config()
    run = engine(network("chain"), options)
    for name, parameter in run.model.named_parameters():
        parameter.requires_grad_(name.startswith(("2.", "10.")))
    before = model_bits(run)
    device = train_beside(run, options, tmp_path, 5, "-O1")
    assert {"3.running_mean", "6.running_var"} <= changed(run, before)
    assert {held.parameter.name for held in device.places.parameters} == {
        *("2.weight", "2.bias", "10.weight", "10.bias")
    }


def test_weights_that_stand_are_constant_data(tmp_path):
    """No RAM for them, and no code of their backward pass."""
    options = config()
    run = engine(network("cnn"), options)
    run.train_only(["10"])
    code = code_of(run, options)
    assert code.places.saved == 24 + 8 * 2 + 5 * 650
    assert code.places.arena <= 22 * 1024
    assert code.frozen.size == 24058 - 650 + 2 * 2 * 112 + 2 * 8 * 112
    text = code.files["model.c"].decode()
    assert text.count("samebits_train_weight_step(") == text.count("_train_bias_step(") == 1
    assert "input_gradient" not in text
    assert "norm_gradient" not in text
    Device(code, tmp_path, "-O0", "-Wno-unused-function")


def test_a_name_that_nothing_has_is_told_with_those_there_are():
    run = engine(network("dropout"), config())
    said = r"--train-only: .* found 'head', which none has; there are 1, 1\.weight, 1\.bias, 4, "
    with pytest.raises(InputError, match=said):
        run.train_only(["1", "head"])


def test_a_network_of_which_nothing_trains_is_refused():
    options = config()
    run = engine(network("dropout"), options)
    for parameter in run.model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(UnsupportedError, match="expected a parameter that steps train, found none"):
        code_of(run, options)


def test_states_tell_what_stands_beside_them(tmp_path):
    """A state of the same head on another body is refused."""
    options = config()
    codes = []
    for seed in (0, 1):
        run = engine(network("dropout"), config(seed=seed))
        run.train_only(["7"])
        codes.append(code_of(run, options))
    assert codes[0].places.saved == codes[1].places.saved
    device = Device(codes[0], tmp_path, "-O0")
    with pytest.raises(InputError, match="expected a state of the network"):
        from_bytes(device.state(), codes[1].places)
    back = from_bytes(device.state(), codes[0].places)
    assert set(back.model) == {f"7.{n}.{k}" for n in ("weight", "bias") for k in KINDS}
    assert state_of(run, 0).model.keys() > back.model.keys()


KINDS = ("codes", "delayed", "exponent")
