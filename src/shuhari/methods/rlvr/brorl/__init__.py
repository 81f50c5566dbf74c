"""BroRL: Scaling Reinforcement Learning via Broadened Exploration (arXiv 2510.01180)."""
