"""Quantized networks trained on in the arithmetic of their integers."""

from samebits.finetuning.loop import FineTuned, finetune
from samebits.finetuning.trainable import Trainable

__all__ = ["FineTuned", "Trainable", "finetune"]
