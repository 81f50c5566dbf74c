"""Test environments: Gymnasium environments, registered as `world` and named in recipes as `gym/world/<name>`.

A world is a dataclass whose fields are its settings (`task.kwargs`), with plain attributes, so that a snapshot copies
them; no other module of the library depends on one.
"""
