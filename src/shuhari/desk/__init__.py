"""What a person touches: the command line, Python interface, board, serving, replay, planning, plots."""
