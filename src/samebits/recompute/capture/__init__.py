"""Any PyTorch model within a memory budget, with the bits of eager PyTorch.

Data flow: torch.compile's guards and AOTAutograd's joint graph of eager operators (`step`), which
`kernels` makes those that eager runs; the graph as plain data, storages and nodes (`facts`, read
by `graphs`), with what each node costs and takes (`costs`); the memory of a choice of kept
storages, simulated (`simulation`); which to keep (`planner`, `relaxation`); two graphs of a plan
(`graphs`)."""
