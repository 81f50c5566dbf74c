"""What is kept, and what a learner draws."""
