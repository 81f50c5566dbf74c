"""Self-Critique: was a problem trained on with RL?"""
