"""Value Gradient weighted Model-Based Reinforcement Learning (arXiv 2204.01464)."""
