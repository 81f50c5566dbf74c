"""Claims: a paper's statement about its method, scaled down and tested against a baseline over common seeds.

`claim` reads the table, `runs` makes the runs, `quantities` are what is compared (`curve` reads curves), `verdict` is
the rule, `result` what is kept, `sources` what it was measured with.
"""
