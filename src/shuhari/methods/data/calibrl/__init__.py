"""Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning (arXiv 2602.20197)."""
