"""What a run has kept, used once more: its rollouts under another grader (`regrade`), the update that it made of them
under other settings (`what_if`).

`steps` reads what is there and where the run stood; `update` makes an update again, by the loop's own parts. All of it
gives plain values, and nothing is written into a run. Left out: sampling anew, which is a run of its own.
"""
