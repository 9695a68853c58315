"""What errors say in Python beyond their messages."""

from __future__ import annotations

import pickle
import traceback

import pytest

from samebits.errors import InputError, SamebitsError
from samebits.recipes.reading import Reading


@pytest.mark.parametrize(
    ("message", "note"),
    [
        ("give --resize 8x8 or --colour", ["in Python --resize is resize=, --colour is colour="]),
        ("--native-dim 3, --native-dim 4", ["in Python --native-dim is native_dim="]),
        (
            "needs samples; give --data SAMPLES",
            ["in Python --data is data=, calibration= or samples="],
        ),
        ("make one with: samebits compile MODEL --target c --out DIR", None),
        ("start torchrun with another --nproc-per-node", None),
        ("expected a-b--c and -- and --9", None),
        ("expected 'gcc --version' to end, found it running; put another in its place", None),
        ('the linker said "--gc-sections"; give --cpu', ["in Python --cpu is cpu="]),
    ],
)
def test_arguments_of_options(message, note):
    error = InputError(message)
    assert str(error) == message
    assert getattr(error, "__notes__", None) == note
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), getattr(again, "__notes__", None)) == (message, note)


def test_a_traceback_names_the_argument():
    with pytest.raises(SamebitsError) as caught:
        Reading(colour="red")
    lines = traceback.format_exception_only(caught.value)
    assert lines[-1] == "in Python --colour is colour=\n"
