"""What papers show without training a model: exact identities and simulations."""
