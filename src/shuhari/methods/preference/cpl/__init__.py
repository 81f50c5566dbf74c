"""Contrastive Preference Learning: Learning from Human Feedback without RL (arXiv 2310.13639)."""
