"""What to collect next."""
