"""Conditional Advantage Estimation for Reinforcement Learning in Large Reasoning Models (arXiv 2509.23962)."""
