"""Results of papers that need no model: exact identities and simulations."""
