"""Improving Language Models with Advantage-based Offline Policy Gradients (arXiv 2305.14718)."""
