"""Demonstrations, preferences and recorded answers beside RL."""
