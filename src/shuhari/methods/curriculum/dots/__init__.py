"""Difficulty-targeted Online Data Selection and Rollout Replay (arXiv 2506.05316)."""
