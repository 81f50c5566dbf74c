"""What a run has kept, used once more: its rollouts under another grader (`regrade`).

`kept` reads what is there and where the run stood. All of it gives plain values, and nothing is written into a run.
Left out: sampling anew, which is a run of its own.
"""
