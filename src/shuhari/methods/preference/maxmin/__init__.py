"""MaxMin-RLHF: Towards Equitable Alignment of Large Language Models with Diverse Human Preferences (2402.08925)."""
