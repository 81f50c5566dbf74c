"""Reinforcement Learning Finetunes Small Subnetworks in Large Language Models (arXiv 2505.11711)."""
