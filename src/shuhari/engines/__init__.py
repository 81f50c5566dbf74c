"""Engines, which serve policies to rollouts."""
