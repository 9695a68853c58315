"""Training on devices: a step of `samebits.train` as C99, and its state on the way there and back.

`record` makes a `StepTape` of a recorded training graph: calls over values with lives. `places`
puts its values and the state into one block of memory, `emit` writes it as C that calls
csrc/ondevice, `optimizer` what of it depends on the optimizer, `frozen` what no step changes, as
constant data, `package` a folder of it. `state` turns a state of PyTorch into the bytes that the C
loads, and back.
"""
