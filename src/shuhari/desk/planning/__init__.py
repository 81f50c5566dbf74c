"""The planner: how fast a run would be on other devices, with another split of them, synchronous or not.

`workload` is what answers are like, `hardware` what work costs, `simulate` plays a run of both event by event,
`measured` reads them from a run, `choose` looks for the best split and the first bottleneck, `published` compares with
what others have measured. Left out: memory (whether a model fits), failures, learning (whether stale data teach less).
"""
