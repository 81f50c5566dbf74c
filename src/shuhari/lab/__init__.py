"""Findings about methods and runs: claims and diagnosis."""
