"""The board: runs, rollouts and claims in a browser. It reads; what changes a run is asked of `store`, as by the
terminal.

`app` has the addresses, `views/` what each says in plain values (also `shuhari board --json`), `catalogue` finds runs,
`static/` is the page: plain modules of JavaScript, without a build step and without anything from elsewhere.
"""
