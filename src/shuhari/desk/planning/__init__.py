"""The planner: how fast a run would be on other devices, split differently, synchronous or not.

`workload` describes the answers, `hardware` the cost of work, `simulate` simulates a run from both event by event,
`measured` reads them from a run, `choose` finds the best split and the first bottleneck, `published` compares with
published measurements. Left out: memory (whether a model fits), failures, learning (whether stale data teach less).
"""
