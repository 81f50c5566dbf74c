"""Advancing Language Model Reasoning through Reinforcement Learning and Inference Scaling (arXiv 2501.11651)."""
