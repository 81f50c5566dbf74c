"""Making RL with Preference-based Feedback Efficient via Randomization (arXiv 2310.14554)."""
