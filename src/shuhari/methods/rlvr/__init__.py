"""Reinforcement learning from verifiable rewards: losses, credit, exploration, group sizes."""
