"""Methods that use demonstrations, preferences and recorded answers with RL."""
