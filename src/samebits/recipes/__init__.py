"""Recipes: frozen records of options, one for each concern (docs/guide/recipes.md)."""

from samebits.recipes.deployment import Accelerator, Packaging
from samebits.recipes.quantization import Calibration, FineTuning, Formats, Recurrence
from samebits.recipes.reading import PLAIN, DataSource, Reading, prepared, read, reading_of
from samebits.recipes.record import (
    RECIPES,
    Given,
    Option,
    Recipe,
    from_record,
    option_of,
    read_recipes,
)
from samebits.recipes.taking import by_options, takes
from samebits.recipes.training import Execution, Numerics, Optimizer, Recomputation, Training

__all__ = [
    "PLAIN",
    "RECIPES",
    "Accelerator",
    "Calibration",
    "DataSource",
    "Execution",
    "FineTuning",
    "Formats",
    "Given",
    "Numerics",
    "Optimizer",
    "Option",
    "Packaging",
    "Reading",
    "Recipe",
    "Recomputation",
    "Recurrence",
    "Training",
    "by_options",
    "from_record",
    "option_of",
    "prepared",
    "read",
    "read_recipes",
    "reading_of",
    "takes",
]
