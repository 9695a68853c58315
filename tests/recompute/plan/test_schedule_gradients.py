"""Levels, by hand, of gradients that meet, and of what is saved besides values."""

import pytest

from samebits.recompute.network.sublayer import Loss, PassNetwork, SubLayer
from samebits.recompute.plan.schedule import compile_schedule, simulate


def diamond(*, handed, fresh):
    """a 100 is read by b 40 and by c 40, whose sum is the output; nothing is kept for later.

    handed, fresh: storages of the gradient that b gives to a, whose backward pass comes second.
    """
    layers = (
        SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
        SubLayer("a", "any", (0,), (25,), 100),
        SubLayer(
            *("b", "any", (1,), (25,), 40), gradients=((1, handed),), fresh=fresh,
            backward_peak=sum(fresh),
        ),
        SubLayer(
            *("c", "any", (1,), (25,), 40), gradients=((1, (0,)),), fresh=(100,),
            backward_peak=100,
        ),
        SubLayer("sum", "any", (2, 3), (10,), 10, gradients=((2, (-1,)), (3, (-1,)))),
    )  # fmt: skip
    return PassNetwork(layers, 4, Loss(gradient=10))


def levels(network):
    found = simulate(network, compile_schedule(network, ()))
    return {
        f"{action.kind} {action.value}": (peak, after)
        for action, peak, after in found
        if action.kind != "free"
    }


# Before b's backward pass: the input 8, the gradient of the output 10, c's gradient of a 100.
BEFORE = 8 + 10 + 100


@pytest.mark.parametrize(
    ("loss", "peak"),
    [
        (Loss(kept=7, forward_peak=90, backward_peak=20, gradient=10), 18 + 90),
        (Loss(kept=7, forward_peak=26, backward_peak=20, gradient=10), 18 + 7 + 20),
        (Loss(kept=20, forward_peak=26, backward_peak=7, gradient=10), 18 + 20 + 7),
    ],
)
def test_the_larger_half_of_the_loss_counts(loss, peak):
    layers = (
        SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
        SubLayer("a", "any", (0,), (10,), 10),
    )
    assert levels(PassNetwork(layers, 1, loss))["loss 1"] == (peak, 18 + 10)


def test_a_second_gradient_is_kept_apart():
    found = levels(diamond(handed=(0,), fresh=(100,)))
    assert found["backward 2"] == (BEFORE + 100, BEFORE + 100)
    assert found["backward 1"] == (BEFORE + 100, 18)


def test_extra_memory_is_freed_with_its_sub_layer():
    """What a sub-layer saves besides values, also of one whose output nobody reads."""
    layers = (
        SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
        SubLayer("a", "any", (0,), (5,), 20),
        SubLayer("unused", "any", (1,), (5,), 20, extra=16, gradients=((1, (0,)),), fresh=(20,)),
        SubLayer("c", "any", (1,), (5,), 20, extra=4, gradients=((1, (0,)),), fresh=(20,)),
    )
    network = PassNetwork(layers, 3, Loss(gradient=20))
    found = levels(network)
    assert found["loss 3"] == (8 + 16 + 4 + 20 + 20, 8 + 16 + 4 + 20 + 20)
    assert found["backward 3"] == (8 + 16 + 4 + 20 + 20, 8 + 16 + 20 + 20)
    # It has no gradient: its backward pass does not run, but what it saved is freed.
    assert found["backward 2"] == (8 + 16 + 20 + 20, 8 + 20 + 20)
    assert found["backward 1"] == (8 + 20 + 20, 8 + 20)


def test_both_parts_of_the_gradient_of_a_shared_weight_are_kept():
    shared = {"weights": ((3, 7),), "shape": (5,), "size": 20}
    layers = (
        SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
        SubLayer("a", "any", (0,), **shared),
        SubLayer("b", "any", (1,), gradients=((1, (0,)),), fresh=(20,), **shared),
    )
    found = levels(PassNetwork(layers, 2, Loss(gradient=20)))
    assert found["backward 2"][1] == 8 + 20 + 20 + 7
    assert found["backward 1"][1] == 8 + 20 + 7 + 7


@pytest.mark.parametrize(("handed", "left"), [((-1,), 100), ((-2,), 30), ((-1, -2), 130)])
def test_one_of_several_storages_is_handed_on(handed, left):
    """A gradient may have several storages: c gives 100, then b 30."""
    layers = (
        SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
        SubLayer("p", "any", (0,), (25,), 100),
        SubLayer("a", "any", (1,), (25,), 100, gradients=((1, handed),)),
        SubLayer("b", "any", (2,), (25,), 40, gradients=((2, (0,)),), fresh=(30,)),
        SubLayer("c", "any", (2,), (25,), 40, gradients=((2, (0,)),), fresh=(100,)),
        SubLayer("sum", "any", (3, 4), (10,), 10, gradients=((3, (-1,)), (4, (-1,)))),
    )
    found = levels(PassNetwork(layers, 5, Loss(gradient=10)))
    assert found["backward 3"][1] == 18 + 100 + 30
    assert found["backward 2"][1] == 18 + left
    assert found["backward 1"][1] == 18


def heavy(extra):
    """A chain whose middle saves `extra` bytes besides values; the last reads its own output."""
    return PassNetwork(
        (
            SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
            SubLayer("a", "any", (0,), (5,), 20, needs=(0,)),
            SubLayer(
                *("b", "any", (1,), (5,), 20, None, (), extra, 90),
                gradients=((1, (0,)),),
                fresh=(20,),
            ),
            SubLayer(
                *("c", "any", (2,), (5,), 20, None, (3,)), gradients=((2, (0,)),), fresh=(20,)
            ),
        ),
        3,
        Loss(gradient=20),
    )


def test_what_is_saved_besides_values_is_computed_again_too():
    """b's output is read by no backward pass, but a mask of b's is by its own."""
    kinds = [kind for kind, _ in compile_schedule(heavy(16), (2,)) if kind != "free"]
    assert kinds[3:] == ["loss", "backward", "recompute", "backward", "backward"]
    light = [kind for kind, _ in compile_schedule(heavy(2), (2,)) if kind != "free"]
    assert light[3:] == ["loss", "backward", "backward", "backward"]  # it is kept


def test_the_memory_of_computing_again():
    """c is gone, its gradient came down to b's; a is stored. b's pass reaches 90 above that."""
    found = {
        f"{action.kind} {action.value}": (peak, after)
        for action, peak, after in simulate(heavy(16), compile_schedule(heavy(16), (2,)))
        if action.kind != "free"
    }
    before = found["backward 3"][1] - 20  # c's output is freed after it
    assert found["recompute 2"] == (before + 90, before + 20 + 16)


def test_a_deferred_product_that_nobody_reads():
    """Its three actions compute nothing; what it saved is freed at the last of them."""
    product = {"shape": (5,), "size": 20, "gradients": ((1, (0,)),), "fresh": (20,)}
    layers = (
        SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
        SubLayer("a", "any", (0,), (5,), 20),
        SubLayer("unused", "Linear", (1,), extra=16, apart=(50, 30), **product),
        SubLayer("c", "any", (1,), **product),
    )
    network = PassNetwork(layers, 3, Loss(gradient=20))
    found = {
        f"{action.kind} {action.value}": (peak, after)
        for action, peak, after in simulate(network, compile_schedule(network, (), paired=True))
        if action.kind != "free"
    }
    before = 8 + 16 + 20 + 20
    assert found["backward 3"] == (before, before)
    assert found["activation gradient 2"] == (before, before)
    assert found["weight gradient 2"] == (before, before)
    assert found["backward 1"] == (before, before - 20)  # a's gradient, which c gave
    assert found["join 2"] == (before - 20, before - 20 - 16)
