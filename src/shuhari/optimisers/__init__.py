"""How a gradient becomes a step."""
