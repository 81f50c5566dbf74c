"""Leveraging Offline Data in Online Reinforcement Learning (arXiv 2211.04974)."""
