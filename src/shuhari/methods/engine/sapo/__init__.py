"""Sharing is Caring: Efficient LM Post-Training with Collective RL Experience Sharing (arXiv 2509.08721)."""
