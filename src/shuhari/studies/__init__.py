"""Experiments over whole runs."""
