"""MATH-Beyond."""
