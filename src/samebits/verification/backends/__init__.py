"""The backends of this package, a module for each kind; `BACKENDS` in it states them by name."""
