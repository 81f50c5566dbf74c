"""Rollouts: how a group of episodes is collected."""
