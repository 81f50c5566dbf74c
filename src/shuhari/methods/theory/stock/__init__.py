"""Optimizing Return Distributions with Distributional Dynamic Programming (arXiv 2501.13028)."""
