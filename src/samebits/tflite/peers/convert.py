"""A script, run by a Python that has tensorflow: a Keras model as a TensorFlow Lite file.

    convert.py MODEL.keras OUT.tflite

The file is a zip archive, so that Keras reads it in its present format, in which `safe_mode`
refuses functions that a model brings along; for the rest TensorFlow is trusted with the file. The
batch is one sample, so that no size is left open and loops have a number of turns. The script needs
nothing of this project.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(source: str, target: str) -> None:
    """See the module."""
    import tensorflow as tf

    model = tf.keras.models.load_model(source, compile=False, safe_mode=True)
    for x in model.inputs:
        if None in x.shape[1:]:
            raise SystemExit(f"input {x.name!r}: expected fixed sizes, found {x.shape[1:]}")
    inputs = [
        tf.keras.Input(batch_shape=(1, *x.shape[1:]), dtype=x.dtype, name=x.name)
        for x in model.inputs
    ]
    outputs = model(inputs[0] if len(inputs) == 1 else inputs, training=False)
    converter = tf.lite.TFLiteConverter.from_keras_model(tf.keras.Model(inputs, outputs))
    Path(target).write_bytes(converter.convert())


if __name__ == "__main__":
    main(*sys.argv[1:])
