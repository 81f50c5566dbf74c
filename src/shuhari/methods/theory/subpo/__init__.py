"""Submodular Reinforcement Learning (arXiv 2307.13372)."""
