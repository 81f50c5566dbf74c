"""MoDoMoDo: Multi-Domain Data Mixtures for Multimodal LLM Reinforcement Learning (arXiv 2505.24871)."""
