import math

import pytest
from mpmath import mp, mpf

from samebits.errors import InputError
from samebits.train.run.schedule import Schedule, cosine_of_ratio


def test_constant():
    assert {Schedule("constant", 0.3, 7).at(step) for step in range(7)} == {0.3}


def test_step_falls_at_half_and_three_quarters():
    rates = [Schedule("step", 0.5, 8).at(step) for step in range(8)]
    assert rates == [0.5] * 4 + [0.5 / 10] * 2 + [0.5 / 100] * 2


def test_linear():
    assert [Schedule("linear", 1.0, 4).at(step) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_cosine_at_its_exact_points():
    schedule = Schedule("cosine", 0.2, 6)
    assert schedule.at(0) == 0.2
    assert schedule.at(2) == 0.2 * 0.75
    assert schedule.at(3) == 0.1
    assert schedule.at(4) == 0.2 * 0.25


def test_cosine_is_correctly_rounded():
    # the two binary64 neighbours of the result are farther from the true value than the result
    with mp.workprec(400):
        for n in (7, 97, 1000):
            for t in range(0, n, max(1, n // 40)):
                found = cosine_of_ratio(t, n)
                true = mp.cos(mp.pi * mpf(t) / n)
                error = abs(true - mpf(found))
                for other in (math.nextafter(found, 2), math.nextafter(found, -2)):
                    assert error <= abs(true - mpf(other))


def test_cosine_golden():
    # guards against a quiet change of a rate that every trained model depends on
    assert [Schedule("cosine", 0.1, 5).at(step).hex() for step in range(5)] == [
        "0x1.999999999999ap-4",
        (0.1 * (0.5 * (1 + float.fromhex("0x1.9e3779b97f4a8p-1")))).hex(),
        (0.1 * (0.5 * (1 + float.fromhex("0x1.3c6ef372fe950p-2")))).hex(),
        (0.1 * (0.5 * (1 - float.fromhex("0x1.3c6ef372fe950p-2")))).hex(),
        (0.1 * (0.5 * (1 - float.fromhex("0x1.9e3779b97f4a8p-1")))).hex(),
    ]


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_warm_up_rises_to_the_base(name):
    schedule = Schedule(name, 0.4, 10, warmup=4)
    assert [schedule.at(step) for step in range(4)] == [0.4 * (k / 4) for k in (1, 2, 3, 4)]
    assert schedule.at(4) == 0.4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cosin", 0.1, 5), "expected a schedule among constant, step, linear, cosine, found 'c"),
        (("cosine", float("nan"), 5), "expected a finite learning rate >= 0, found nan"),
        (("cosine", -0.1, 5), "expected a finite learning rate >= 0, found -0.1"),
        (("cosine", 0.1, 5, 5), "found 5 steps and a warm-up of 5"),
    ],
)
def test_bad_schedules_are_refused(arguments, text):
    with pytest.raises(InputError) as caught:
        Schedule(*arguments)
    assert text in str(caught.value)


def test_steps_outside_the_run_are_refused():
    with pytest.raises(ValueError, match=r"step 5 is outside 0\.\.4"):
        Schedule("cosine", 0.1, 5).at(5)
