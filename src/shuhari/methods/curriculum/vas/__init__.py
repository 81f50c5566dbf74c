"""MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open Resources (arXiv 2509.21268)."""
