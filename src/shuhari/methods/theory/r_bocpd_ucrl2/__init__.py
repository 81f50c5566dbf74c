"""Restarted Bayesian Online Change-point Detection for Non-Stationary Markov Decision Processes (arXiv 2304.00232)."""
