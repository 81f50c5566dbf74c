"""RL with KL penalties is better viewed as Bayesian inference (arXiv 2205.11275)."""
