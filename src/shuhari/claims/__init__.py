"""Claims: what a recipe's paper says, scaled to what can be measured, against its baseline over common seeds.

`claim` reads the table, `runs` makes the runs, `quantities` are what is compared (`curve` reads curves), `verdict` is
the rule, `result` what is kept, `sources` what it was measured with.
"""
