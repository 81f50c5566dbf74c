"""Demonstration-Regularized RL (arXiv 2310.17303)."""
