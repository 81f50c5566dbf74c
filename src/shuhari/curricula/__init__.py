"""Curricula: choose the problems to collect next."""
