"""Records of training operations: what autograd keeps of a call, and who computes it."""

import importlib
import pkgutil

import pytest
import torch

import samebits.train
from samebits.errors import UnsupportedError
from samebits.train import BFPParameter, BFPTensor
from samebits.train.operation import TrainingOperation, interpreting, listening
from samebits.train.operations.activations import RELU, TABLE, relu
from samebits.train.operations.addition import ADD
from samebits.train.operations.linear import PRODUCTS, linear
from samebits.train.value import BFPValue


def records():
    """Every record of the package, by the module and name that hold it."""
    found = {}
    for info in pkgutil.walk_packages(samebits.train.__path__, "samebits.train."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if isinstance(value, TrainingOperation):
                found.setdefault(value, (info.name, name))
    return found


def drawn(*shape, wanted=True):
    generator = torch.Generator().manual_seed(sum(shape))
    codes = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
    return BFPTensor(codes, -6).requires_grad_(wanted)


def test_names_are_unique_and_every_record_but_one_has_a_gradient():
    found = records()
    names = [operation.name for operation in found]
    assert len(found) > 35
    assert len(set(names)) == len(names)
    assert [o.name for o in found if o.gradient is None] == ["Narrow16"]
    assert {kind for o in found for kind in o.reads if isinstance(kind, str)} == {
        *("x", "8", "w", "y")
    }


def test_autograd_is_asked_only_where_a_gradient_is_wanted():
    assert relu(drawn(2, 3)).grad_fn is not None
    assert relu(drawn(2, 3, wanted=False)).grad_fn is None
    with torch.no_grad():
        assert relu(drawn(2, 3)).grad_fn is None


def kept_by(compute):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = compute()
    return kept, y


def test_what_is_read_is_kept_and_nothing_else():
    x, w = drawn(4, 3), BFPParameter.from_real(torch.randn(2, 3))
    b = BFPParameter.from_real(torch.randn(2))
    for compute, wanted in (
        (lambda: RELU(x, 0), 2),  # a mask of bits
        (lambda: TABLE(x, "tanh", None), 12),  # the input
        (lambda: ADD(x, x), 0),
        (lambda: linear(x, w, b), 12 + 6 + 2),  # the input, and the codes of the parameters
    ):
        kept, _ = kept_by(compute)
        assert sum(t.numel() for t in kept) == wanted
        assert all(t.dtype in (torch.int8, torch.uint8) for t in kept)


def test_codes_that_are_not_declared_cannot_be_read():
    seen = []

    def gradient(call, grad):
        seen.append(call.arguments[0].shape)
        return BFPValue(grad.codes, call.arguments[0].exponent)

    blind = TrainingOperation("Blind", lambda x: BFPValue(*x.resolved()), gradient)
    y = blind(drawn(2, 3))
    with pytest.raises(UnsupportedError, match="changed in place"):
        y.backward(BFPTensor(torch.ones(2, 3, dtype=torch.int16), 0))
    assert seen == [(2, 3)]


def test_a_weight_that_changes_before_the_backward_pass_is_an_error():
    w = BFPParameter.from_real(torch.randn(2, 3))
    y = linear(drawn(4, 3), w)
    w.codes.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(BFPTensor(torch.ones(4, 2, dtype=torch.int16), 0))


def test_a_float_gradient_is_refused():
    y = relu(drawn(2, 3))
    with pytest.raises(TypeError, match="expected a BFP gradient, found a float tensor"):
        y.backward(torch.ones(2, 3))


def test_contributions_to_a_gradient_stay_apart_until_they_are_read():
    x = drawn(2, 3)
    y = ADD(relu(x), relu(x))
    y.backward(BFPTensor(torch.full((2, 3), 3, dtype=torch.int16), -20))
    assert len(x.grad.parts) == 2
    both = x.grad.resolved()
    assert both[1] == -20
    assert torch.equal(both[0], torch.where(relu(x).codes > 0, 6, 0).to(torch.int32))


def test_interpreters_take_values_and_listeners_tensors():
    x, heard = drawn(2, 3, wanted=False), []

    def interpreter(operation, *arguments):
        heard.append((operation.name, type(arguments[0]).__name__))
        return BFPValue(arguments[0].codes, 5)

    def listener(operation, arguments):
        heard.append((operation.name, type(arguments[0]).__name__))
        return operation.compute(*arguments)

    with interpreting(interpreter):
        assert relu(x).exponent == 5
    with listening(listener):
        assert relu(x).exponent == x.exponent
    relu(x)
    assert heard == [("Relu", "BFPValue"), ("Relu", "BFPTensor")]


def test_a_representation_is_the_name():
    assert repr(PRODUCTS) == "TrainingOperation(Products)"
