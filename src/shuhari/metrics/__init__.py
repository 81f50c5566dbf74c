"""Numbers of an evaluation that no play gives: about models, answers and weights."""
