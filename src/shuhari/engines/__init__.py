"""What serves policies to rollouts."""
