"""MaxMin-RLHF: Towards Equitable Alignment of Large Language Models with Diverse Human Preferences (arXiv 2402.08925)."""
