"""Training runs: the loop, its workers, and the files of a run folder."""
