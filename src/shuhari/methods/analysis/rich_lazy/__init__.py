"""How connectivity structure shapes rich and lazy learning in neural circuits."""
