"""Effects of training on weights and skills."""
