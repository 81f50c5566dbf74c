"""Meta Automatic Curriculum Learning (arXiv 2011.08463)."""
