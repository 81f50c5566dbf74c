"""Accelerating Nash Learning from Human Feedback via Mirror Prox (arXiv 2505.19731)."""
