"""Inference-Time Scaling for Generalist Reward Modeling (arXiv 2504.02495)."""
