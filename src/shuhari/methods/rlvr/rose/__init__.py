"""Reinforced Efficient Reasoning via Semantically Diverse Exploration (arXiv 2601.05053)."""
