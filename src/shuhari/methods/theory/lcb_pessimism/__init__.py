"""Bridging Offline Reinforcement Learning and Imitation Learning: A Tale of Pessimism."""
