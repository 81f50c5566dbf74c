"""CPL: Critical Plan Step Learning Boosts LLM Generalization in Reasoning Tasks (arXiv 2409.08642)."""
