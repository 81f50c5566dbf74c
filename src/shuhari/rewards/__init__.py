"""Graders beside the task's own."""
