"""Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback (arXiv 2410.23022)."""
