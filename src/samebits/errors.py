"""The errors samebits raises on purpose. Every message says what was expected, what was found,
where, and what to do; the command line prints it and exits with code 2."""

from __future__ import annotations


class SamebitsError(Exception):
    """Base class of every error whose message is written for a user."""


class InputError(SamebitsError):
    """Data, a file or an argument is not what was asked for."""


class NonFiniteError(InputError):
    """A tensor holds NaN or infinity."""


class RangeError(SamebitsError):
    """A value or exponent leaves the range its format can hold (training diverged)."""


class UnsupportedError(SamebitsError):
    """A layer, function or shape that samebits does not realise."""


class CheckpointError(SamebitsError):
    """A checkpoint is missing, damaged, or belongs to another model or run."""


class WorkerError(SamebitsError):
    """Another worker of a distributed run died, gave no answer in time, or was stopped."""
