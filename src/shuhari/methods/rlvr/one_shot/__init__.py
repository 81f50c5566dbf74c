"""Reinforcement Learning for Reasoning in Large Language Models with One Training Example (arXiv 2504.20571)."""
