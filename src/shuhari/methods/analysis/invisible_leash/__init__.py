"""Invisible Leash."""
