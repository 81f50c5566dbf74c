"""General Preference Modeling with Preference Representations for Aligning Language Models (arXiv 2410.02197)."""
