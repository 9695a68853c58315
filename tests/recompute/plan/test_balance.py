from recompute_nets import make
from samebits.recompute.plan.balance import Balance, balance, predicted_balance
from samebits.recompute.plan.cost import find_device, gradient_times, times
from samebits.recompute.plan.schedule import Action, compile_schedule
from samebits.recompute.run.profile import survey


def test_balance_by_hand():
    """Chain 5; then 7 beside 2 + 3 + 6; then 4 beside 1; then 3 of the chain."""
    costs = [
        *(("forward", 0, 100), ("loss", 0, 100), ("backward", 9, 5), ("free", 9, 100)),
        *(("weight gradient", 8, 7), ("recompute", 7, 2), ("backward", 7, 3)),
        *(("activation gradient", 6, 6), ("join", 8, 0), ("weight gradient", 6, 4)),
        *(("backward", 5, 1), ("join", 6, 0), ("backward", 4, 3)),
    ]
    table = {Action(kind, index): cost for kind, index, cost in costs}
    found = balance(tuple(table), table.__getitem__)
    assert found == Balance(5 + 7 + 11 + 4 + 1 + 3, 5 + 11 + 4 + 3)
    assert found.load == 31 / 46


def test_one_unit_works_half_of_the_time_of_two():
    assert Balance(10, 10).load == 0.5
    assert Balance(10, 5).load == 1.0
    assert Balance(0, 0).load == 0.5


def test_pairing_evens_the_predicted_load_out():
    case = make("resnet8", "bfp")
    _, network = survey(case.model, case.inputs, case.loss)
    device = find_device("laptop-cpu")
    orders = [compile_schedule(network, network.choices(), paired) for paired in (False, True)]
    one, two = (predicted_balance(network, s, device) for s in orders)
    gradients = gradient_times(network, device)
    again = sum(times(network, device)[i] for a, i in orders[0] if a == "recompute")
    assert one.work == one.span == two.work == sum(map(sum, gradients[1:])) + again
    assert two.span < one.span
    assert 0.5 < two.load <= 1
    # The first convolution has no activation gradient, sums and views no weight gradient.
    assert [layer.name for layer, (a, w) in zip(network.layers, gradients, strict=True) if not a]
    kinds = {x.kind for x, (_, w) in zip(network.layers, gradients, strict=True) if w}
    assert kinds == {"Conv2d", "Linear"}
