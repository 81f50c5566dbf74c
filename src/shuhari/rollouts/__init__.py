"""How a group of episodes comes about."""
