"""Reinforcement learning with combinatorial actions for coupled restless bandits (arXiv 2503.01919)."""
