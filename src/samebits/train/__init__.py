"""Training in block floating point with lazy update: `convert` a torch.nn model and train as usual.

    model = convert(torch_model)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = CrossEntropyLoss()(model(model_input(model, images)), labels)
    loss.backward()
    optimizer.step()

docs/guide/train.md shows loops, losses, checkpoints and workers.
"""

from samebits.train.average import EMA
from samebits.train.clip import clip_grad_norm_, clip_grad_value_
from samebits.train.convert import convert, model_input
from samebits.train.islands import float_islands
from samebits.train.layers import Layer, load_state, set_step
from samebits.train.losses.difference import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from samebits.train.losses.entropy import binary_cross_entropy_with_logits, cross_entropy
from samebits.train.losses.functional import CrossEntropyLoss, MSELoss
from samebits.train.operations import names  # noqa: F401 - functions by PyTorch's names
from samebits.train.optim import SGD, Adam
from samebits.train.recording import GraphedModel
from samebits.train.tensor import BFPParameter, BFPTensor

__all__ = [
    "EMA",
    "SGD",
    "Adam",
    "BFPParameter",
    "BFPTensor",
    "CrossEntropyLoss",
    "GraphedModel",
    "Layer",
    "MSELoss",
    "binary_cross_entropy_with_logits",
    "clip_grad_norm_",
    "clip_grad_value_",
    "convert",
    "cross_entropy",
    "float_islands",
    "huber_loss",
    "l1_loss",
    "load_state",
    "model_input",
    "mse_loss",
    "set_step",
    "smooth_l1_loss",
]
