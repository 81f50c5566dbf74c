"""The tasks of reasoning-gym, how each is graded, and the formulas that its graders read."""
