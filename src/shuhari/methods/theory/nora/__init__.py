"""Actor-Critics Can Achieve Optimal Sample Efficiency (arXiv 2505.03710)."""
