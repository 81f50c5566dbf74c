"""Whole batch in, columns out: credit, shaping, filters."""
