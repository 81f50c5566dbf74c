"""The tasks of reasoning-gym, their graders, and the formulas that these read."""
