"""Lanes of environments that are stepped together, here or in worker processes."""
