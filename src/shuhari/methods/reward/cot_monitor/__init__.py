"""Mitigating Deceptive Alignment via Self-Monitoring (arXiv 2505.18807)."""
