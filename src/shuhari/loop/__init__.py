"""The loop: a run, what components see of it, how episodes are collected, and how it resumes."""
