"""Any PyTorch model within a memory budget, with the bits of eager PyTorch.

Data flow: torch.compile's guards and AOTAutograd's joint graph of eager operators (`step`), which
`kernels` makes those that eager runs; the graph as storages and nodes (`graphs`), with what each
node costs and takes (`costs`), which `plan` plans; two graphs of a plan (`graphs`)."""
