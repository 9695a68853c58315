"""One model on many backends, compared for equality."""

from samebits.verification.backend import Backend
from samebits.verification.compare import Difference, Verdict, compare
from samebits.verification.registry import backend_named, known_backends

__all__ = ["Backend", "Difference", "Verdict", "backend_named", "compare", "known_backends"]
