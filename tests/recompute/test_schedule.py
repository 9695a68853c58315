import torch

from samebits.recompute.memory import recording, step_peak
from samebits.recompute.schedule import Loss, Network, SubLayer, compile_schedule, peak, simulate

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
NETWORK = Network(LAYERS, 4, Loss(5, 6, 20, 10))


def words(schedule):
    return " ".join(f"{action}{index}" for action, index in schedule)


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
    found = {str(i.action) + str(i.value): (p, a) for i, p, a in simulate(NETWORK, everything)}
    assert found["forward2"] == (8 + 100 + 3 + 60, 8 + 100 + 50 + 4 + 3)
    assert found["recompute2"][1] - found["recompute1"][1] == 50 - 3
    assert peak(NETWORK, everything) == max(p for p, _ in found.values())


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
