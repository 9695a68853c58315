"""One model on many backends, compared for equality."""

from samebits.verify.backend import Backend, backend_named, known_backends
from samebits.verify.compare import Difference, Verdict, compare
from samebits.verify.model import Model, load_model, model_of

__all__ = [
    "Backend",
    "Difference",
    "Model",
    "Verdict",
    "backend_named",
    "compare",
    "known_backends",
    "load_model",
    "model_of",
]
