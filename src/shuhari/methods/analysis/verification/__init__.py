"""Scaling Test-Time Compute Without Verification or RL is Suboptimal."""
