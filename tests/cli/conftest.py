from dataclasses import dataclass

import numpy as np
import pytest

from samebits.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def samebits(capsys):
    """Runs the command line in this process."""

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(caught.value.code or 0, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def npz(tmp_path_factory):
    """96 training and 24 test images [1, 6, 6] of 3 classes that their brightness tells apart."""
    rng = np.random.default_rng(5)
    labels = np.arange(120) % 3
    images = rng.integers(0, 120, (120, 6, 6)) + 60 * labels[:, None, None]
    path = tmp_path_factory.mktemp("data") / "three.npz"
    images = images.astype(np.uint8)
    np.savez(path, x_train=images[:96], y_train=labels[:96], x_test=images[96:], y_test=labels[96:])
    return path
