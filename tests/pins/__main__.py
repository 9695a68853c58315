"""`make pins`: writes tests/golden/bits.json anew and prints which pins that changes."""

import sys

import torch

from pins import ROUTES, UnavailableError
from pins.book import GOLDEN, regenerate

torch.set_num_threads(1)  # small tensors: more threads wait longer than they compute
try:
    for line in regenerate(GOLDEN, ROUTES):
        print(line)
except UnavailableError as error:
    sys.exit(f"make pins: {error}")
