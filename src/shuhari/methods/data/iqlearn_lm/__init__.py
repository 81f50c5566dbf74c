"""Imitating Language via Scalable Inverse Reinforcement Learning (arXiv 2409.01369)."""
