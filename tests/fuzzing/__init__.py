"""Fuzzing of every reader of untrusted bytes: `make fuzz`, and PYTHONPATH=tests python -m fuzzing.

`mutations` change files at the level of their format, so that most pass the first check; `seeds`
makes valid files; `targets` says what reads them; `harness` runs a target in a process of bounded
memory and keeps what reached new lines; `corpus` holds small files of every target, each with what
became of it, written by `python -m fuzzing --make-corpus`.
"""
