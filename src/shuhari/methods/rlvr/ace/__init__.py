"""Overconfident Errors Need Stronger Correction: Asymmetric Confidence Penalties for Reinforcement Learning
(arXiv 2602.21420)."""
