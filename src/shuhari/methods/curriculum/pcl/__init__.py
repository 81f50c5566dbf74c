"""Prompt Curriculum Learning for Efficient LLM Post-Training (arXiv 2510.01135)."""
