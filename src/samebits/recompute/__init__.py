"""Recompute or store: the memory of a training step, planned, and executed bit for bit.

Data flow: `network` (a model as a tape of sub-layers, and their facts as plain data), `plan` (which
values to drop, and the schedule that follows), `run` (a model measured, and a schedule executed),
`training` (plans in a training run). Each imports only from those before it. docs/spec/recompute.md
is the specification."""
