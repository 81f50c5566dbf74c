"""Let it Calm: Exploratory Annealed Decoding for Verifiable Reinforcement Learning (arXiv 2510.05251)."""
