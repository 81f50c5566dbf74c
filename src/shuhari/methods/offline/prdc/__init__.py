"""Policy Regularization with Dataset Constraint for Offline Reinforcement Learning (arXiv 2306.06569)."""
