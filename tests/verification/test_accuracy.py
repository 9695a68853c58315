"""Test samples as codes of step graphs, and sequences streamed through a backend."""

import numpy as np
import pytest
import torch

from compare import assert_same
from samebits.data.dataset import Dataset
from samebits.errors import InputError
from samebits.ir.interpreter import run_steps
from samebits.ir.rewrite import simplify
from samebits.model import Model
from samebits.pytorch import import_module
from samebits.quantization import quantize_recurrent
from samebits.train.architectures import build, initialise
from samebits.verification.accuracy import correct, image_codes, step_codes, streamed
from samebits.verification.backends.pytorch import PyTorch
from samebits.verification.inputs import quantize_samples

LABELS = torch.tensor([0, 1, 1, 0, 1])


def dataset(*shape, dtype=torch.int16):
    generator = torch.Generator().manual_seed(0)
    high = 256 if dtype == torch.uint8 else 20000
    samples = torch.randint(0, high, (5, *shape), generator=generator).to(dtype)
    return Dataset(samples, LABELS, samples.flip(0), LABELS, ("a", "b"))


def classifier(data, batch=1):
    """Two LSTM layers with random weights, quantized, as a model of one step."""
    module = build("lstm", data.input_shape, 2)
    initialise(module, 3)
    graph = simplify(import_module(module.eval(), (torch.zeros(batch, *data.input_shape),)))
    sample = data.batch("train", torch.arange(batch)).numpy()
    return Model("lstm", quantize_recurrent(graph, [{graph.inputs[0]: sample}])[0])


@pytest.mark.parametrize(
    ("shape", "dtype", "axis"),
    [((6, 4), torch.int16, 1), ((1, 6, 4), torch.uint8, 2), ((3, 4, 2), torch.uint8, 2)],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_steps_of_sequences_and_rows_of_images(shape, dtype, axis, batch):
    data = dataset(*shape, dtype=dtype)
    model = classifier(data, batch)
    value = model.integer.values[model.integer.inputs[0]]
    steps = step_codes(model, data)
    samples = data.batch("test", torch.arange(5)).numpy()
    whole = quantize_samples(np.concatenate([samples, samples[-1:]])[: 5 + batch - 1], value)
    assert len(steps) == shape[axis - 1]
    assert_same(np.concatenate(steps, axis), whole, np.arange(whole.size))
    backend = PyTorch()
    taken, outputs = streamed(model.integer, steps, lambda codes: backend.run(model, codes))
    for start in range(0, len(whole), batch):
        sequence = [codes[start : start + batch] for codes in steps]
        expected = run_steps(model.integer, [np.stack(sequence)])
        assert np.array_equal(outputs[0][start : start + batch], expected[0][-1])
    assert [len(array) for array in taken] == [len(steps) * len(whole)] * 5
    assert_same(taken[0], np.concatenate(steps), np.arange(taken[0].size))
    guesses = outputs[0].reshape(len(whole), -1)[:5].argmax(1)
    assert correct(outputs, data) == int((guesses == LABELS.numpy()).sum())


def test_samples_that_do_not_fit():
    model = classifier(dataset(6, 4))
    assert len(step_codes(model, dataset(9, 4))) == 9
    for data in (dataset(6, 5), dataset(1, 6, 4, dtype=torch.uint8)):
        with pytest.raises(InputError, match=r"do not fit the model: .* found int8 .* of a step"):
            step_codes(model, data)
    with pytest.raises(InputError, match="do not fit the model"):
        image_codes(model, dataset(6, 4))


def test_logits_of_the_last_token_alone_are_no_logits_of_texts():
    text = torch.arange(20, dtype=torch.uint8).reshape(5, 4)
    names = tuple(map(str, range(256)))
    data = Dataset(text, text.long(), text, text.long(), names, "text")
    right = np.zeros((5, 4, 256), np.int8)
    assert correct([right], data) == 1
    message = r"expected logits \[5, 4, classes\] .* found \[5, 256\]"
    with pytest.raises(InputError, match=message):
        correct([right[:, 0]], data)
