"""Experiments over whole runs."""

# Those of this package that train no run; any other says so itself, `trains = False`. It stands here as a word in the
# module of one would be another version of it to the results that were measured with it.
SIMULATED = frozenset({"classroom"})
