"""The board: runs, rollouts and claims in a browser. It reads runs; changes to them are made by `store`, as in the
terminal.

`app` has the routes, `views/` the content of each as plain values (also `shuhari board --json`), `catalogue` finds
runs, `static/` is the page: plain JavaScript modules, without a build step or external resources.
"""
