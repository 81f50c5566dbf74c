"""Snapshot Reinforcement Learning: Leveraging Prior Trajectories for Efficiency (arXiv 2403.00673)."""
