"""What is trained on next."""
