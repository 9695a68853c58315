"""One model on many backends, compared for equality."""

from samebits.model import Model, load_model, model_of
from samebits.verification.backend import Backend, backend_named, known_backends
from samebits.verification.compare import Difference, Verdict, compare

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
