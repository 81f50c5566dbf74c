"""Inference-Time Alignment Control for Diffusion Models with Reinforcement Learning Guidance (arXiv 2508.21016)."""
