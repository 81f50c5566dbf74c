"""Stable and Efficient Single-Rollout RL for Multimodal Reasoning (arXiv 2512.18215)."""
