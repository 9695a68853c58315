"""Training in block floating point with lazy update: `convert` a torch.nn model and train as usual.

model = convert(torch_model)
optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
loss = CrossEntropyLoss()(model(BFPTensor.from_real(images)), labels)
loss.backward()
optimizer.step()
"""

from samebits.train.convert import convert
from samebits.train.layers import Layer, load_state, set_step
from samebits.train.loss import CrossEntropyLoss, MSELoss, cross_entropy, mse_loss
from samebits.train.optim import SGD, Adam
from samebits.train.tensor import BFPParameter, BFPTensor

__all__ = [
    "SGD",
    "Adam",
    "BFPParameter",
    "BFPTensor",
    "CrossEntropyLoss",
    "Layer",
    "MSELoss",
    "convert",
    "cross_entropy",
    "load_state",
    "mse_loss",
    "set_step",
]
