"""Graphs from torch modules, and integer graphs run in torch."""

from samebits.pytorch.executor import TorchExecutor
from samebits.pytorch.importer import import_module

__all__ = ["TorchExecutor", "import_module"]
