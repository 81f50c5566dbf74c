"""The Reasoning Boundary Paradox: How Reinforcement Learning Constrains Language Models (arXiv 2510.02230)."""
