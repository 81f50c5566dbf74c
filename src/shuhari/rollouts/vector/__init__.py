"""Vectorised environments, stepped together in this process or in workers."""
