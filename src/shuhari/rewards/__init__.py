"""Rewards: graders beside the task's own."""
