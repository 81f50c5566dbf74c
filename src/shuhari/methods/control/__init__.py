"""Control: critics, costs, starts, advice."""
