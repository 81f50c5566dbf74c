"""Boundary-Guided Policy Optimization for Memory-efficient RL of Diffusion Large Language Models (arXiv 2510.11683)."""
