"""Model-Based Transfer Learning for Contextual Reinforcement Learning (arXiv 2408.04498)."""
