"""Exploring the Limit of Outcome Reward for Learning Mathematical Reasoning (arXiv 2502.06781)."""
