"""Rewards: graders in addition to the task's own."""
