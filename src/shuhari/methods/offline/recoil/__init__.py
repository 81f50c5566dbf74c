"""Dual RL: Unification and New Methods for Reinforcement and Imitation Learning (arXiv 2302.08560)."""
