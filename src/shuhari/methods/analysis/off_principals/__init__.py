"""The Path Not Taken: RL learns off the principal directions."""
