import torch

from samebits.recompute.network.sublayer import Loss, PassNetwork, SubLayer
from samebits.recompute.plan.schedule import compile_schedule, peak, simulate
from samebits.recompute.run.memory import recording, step_peak

# input 8 -> a 100 -> b 50 (needs a) -> view -> c 10 (needs b and c), gradients as large as values.
LAYERS = (
    SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
    SubLayer("a", "any", (0,), (25,), 100, needs=(0,), forward_peak=120, backward_peak=30),
    SubLayer(
        *("b", "any", (1,), (25,), 50, None, (1,), 4, 60, 110),
        gradients=((1, (0,)),),
        fresh=(100,),
        weights=((0, 7),),
        state=3,
    ),
    SubLayer("view", "any", (2,), (25,), 0, 2, gradients=((2, (-1,)),)),
    SubLayer(
        *("c", "any", (3,), (5,), 10, None, (2, 4), 0, 10, 50),
        gradients=((3, (0,)),),
        fresh=(50,),
    ),
)
NETWORK = PassNetwork(LAYERS, 4, Loss(5, 6, 20, 10))


def words(schedule):
    return " ".join(f"{kind}{index}" for kind, index in schedule)


def test_everything_stored():
    assert words(compile_schedule(NETWORK, ())) == (
        "forward1 forward2 forward3 forward4 loss4 backward4 free2 free4 backward3 backward2 free1 "
        "backward1 free0"
    )


def test_dropped_values_come_back_when_they_are_first_read():
    assert words(compile_schedule(NETWORK, (1, 2))) == (
        "forward1 forward2 free1 forward3 forward4 free2 loss4 recompute1 recompute2 backward4 "
        "free2 free4 backward3 backward2 free1 backward1 free0"
    )
    assert words(compile_schedule(NETWORK, (1,))) == (
        "forward1 forward2 free1 forward3 forward4 loss4 backward4 free2 free4 backward3 "
        "recompute1 backward2 free1 backward1 free0"
    )


def test_levels_by_hand():
    levels = [(peak, after) for _, peak, after in simulate(NETWORK, compile_schedule(NETWORK, ()))]
    assert levels == [
        (128, 108),  # a on the input, its scratch memory above both
        (168, 162),  # b and the 4 bytes that it saves besides
        (162, 162),  # the view
        (172, 172),
        (197, 182),  # 5 kept by the loss, its backward pass 20 above that; a gradient of 10 stays
        (232, 232),  # the gradient of c's input; the one of c is autograd's until the pass ends
        (232, 182),  # b
        (182, 172),  # c
        (172, 172),  # the view hands its gradient on
        (282, 225),  # gradient of a 100, of b's weight 7; gone: gradient of b 50, 4 saved
        (225, 125),  # a
        (155, 25),
        (25, 25),
    ]


def test_what_is_kept_to_compute_again_counts():
    everything = compile_schedule(NETWORK, (1, 2))
    found = {str(i.kind) + str(i.value): (p, a) for i, p, a in simulate(NETWORK, everything)}
    assert found["forward2"] == (8 + 100 + 3 + 60, 8 + 100 + 50 + 4 + 3)
    assert found["recompute2"][1] - found["recompute1"][1] == 50 - 3
    assert peak(NETWORK, everything) == max(p for p, _ in found.values())


def paired_network():
    """A chain of two products whose gradients may be apart, an activation between them, and one
    product that has a weight gradient only."""
    weights = ({"weights": ((i, 7),)} for i in range(3))
    product = {"forward_peak": 0, "backward_peak": 30}
    chain = (
        SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
        SubLayer("a", "Linear", (0,), (5,), 20, needs=(0,), **product, **next(weights)),
        SubLayer(
            *("b", "Linear", (1,), (5,), 20, None, (1,)),
            **product,
            **next(weights),
            gradients=((1, (0,)),),
            fresh=(20,),
            apart=(21, 9),
        ),
        SubLayer("relu", "ReLU", (2,), (5,), 20, None, (3,), gradients=((2, (0,)),), fresh=(20,)),
        SubLayer(
            *("c", "Linear", (3,), (5,), 20, None, (3,)),
            **product,
            **next(weights),
            gradients=((3, (0,)),),
            fresh=(20,),
            apart=(22, 11),
        ),
    )
    return PassNetwork(chain, 4, Loss(0, 0, 0, 20))


SHORT = {"activation gradient": "gradient", "weight gradient": "weight"}


def test_weight_gradients_are_deferred_by_one_product():
    schedule = compile_schedule(paired_network(), (), paired=True)
    assert words((SHORT.get(kind, kind), i) for kind, i in schedule) == (
        "forward1 forward2 forward3 free2 forward4 loss4 free4 gradient4 weight4 backward3 "
        "gradient2 join4 free3 weight2 backward1 free0 join2 free1"
    )
    assert "join" not in words(compile_schedule(paired_network(), ()))


def test_levels_of_deferred_weight_gradients_by_hand():
    network = paired_network()
    levels = {
        f"{SHORT.get(i.kind, i.kind)}{i.value}": (peak, after)
        for i, peak, after in simulate(network, compile_schedule(network, (), paired=True))
    }
    # Before the backward passes: input 8, a 20, relu 20, the gradient of the output 20.
    assert levels["gradient4"] == (68 + 22, 68 + 20)
    assert levels["weight4"] == (88 + 11, 88 + 11)  # all that it will take, and its result
    assert levels["backward3"] == (99 + 20, 99)  # relu's gradient comes, c's input's goes
    assert levels["gradient2"] == (99 + 21, 99 + 20)
    assert levels["join4"] == (119, 119 - 11 + 7)  # autograd holds the output's gradient
    assert levels["weight2"] == (95 + 9, 95 + 9)
    assert levels["backward1"] == (104 + 30, 104 - 20 + 7)
    assert levels["join2"] == (91, 91 - 9 - 20 + 7)


def tops(network, paired):
    """How high each action of a backward pass rises."""
    found = {
        f"{SHORT.get(action.kind, action.kind)}{action.value}": top
        for action, top, _ in simulate(network, compile_schedule(network, (), paired))
    }
    kinds = ("backward", "gradient", "weight", "join")
    return {name: top for name, top in found.items() if name.startswith(kinds)}


def test_a_step_tells_how_high_its_backward_pass_rises():
    """The numbers by hand above. The search for plans takes levels from here."""
    plain = {"backward4": 232, "backward3": 172, "backward2": 282, "backward1": 155}
    assert tops(NETWORK, False) == plain
    assert tops(paired_network(), True) == {
        "gradient4": 90, "weight4": 99, "backward3": 119, "gradient2": 120, "join4": 119,
        "weight2": 104, "backward1": 134, "join2": 91,
    }  # fmt: skip


def test_a_backward_pass_that_no_gradient_reaches():
    """Nothing reads the side's result: what is kept for its backward pass goes after it."""
    network = PassNetwork(
        (
            SubLayer("input", "input", shape=(2,), size=8, differentiable=False),
            SubLayer("a", "any", (0,), (25,), 100, backward_peak=30),
            SubLayer("side", "any", (1,), (8,), 32, extra=4, gradients=((1, (0,)),), fresh=(100,)),
            SubLayer(
                *("out", "any", (1,), (5,), 10), gradients=((1, (0,)),), fresh=(100,),
                backward_peak=100,
            ),
        ),
        3,
        Loss(0, 0, 0, 10),
    )  # fmt: skip
    # At the loss: input 8, side's 4, the gradient of out 10; a and out are gone. Then a's 100.
    wanted = {"backward3": 22 + 100, "backward2": 122, "backward1": 118 + 30}
    assert tops(network, False) == wanted


def test_what_is_dropped_comes_back_before_the_first_of_both_gradients():
    schedule = compile_schedule(paired_network(), (1, 3), paired=True)
    assert words((SHORT.get(kind, kind), i) for kind, i in schedule[8:]) == (
        "recompute3 free2 gradient4 weight4 backward3 recompute1 gradient2 join4 free3 weight2 "
        "backward1 free0 join2 free1"
    )


def test_the_recording_sees_every_tensor():
    with recording() as record:
        a = torch.ones(1000)
        with record.span("inner"):
            b = a.neg()
            del a
            c = b.to(torch.float64)
        del b
    span = record.named("inner")
    assert (span.start, span.peak, span.end) == (4000, 12000, 12000)
    assert record.peak == 12000
    assert record.levels[-1][1] == 8000
    assert float(c[0]) == -1.0


def test_the_peak_of_a_step():
    held = torch.ones(10_000)

    def step():
        x = held.neg()
        y = x.neg()
        del x
        return y.abs()

    assert step_peak(step) == 80_000
    assert step_peak(step) == step_peak(step)
