"""Replays of a run's stored data: its rollouts under another grader (`regrade`), its updates under other settings
(`what_if`).

`steps` reads the stored data and the state of the run at a step; `update` repeats an update with the loop's own parts.
All of it returns plain values, and writes nothing into a run. Left out: sampling again, which is a run of its own.
"""
