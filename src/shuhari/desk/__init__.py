"""User interfaces: the command line, Python, the board, serving, replay, planning, plots."""
