"""The gate judges a finished run by rules, against a committed baseline, and ends in a verdict.

`target` reads the run, `rules` the rules and `baseline` the baseline; `judge` applies the rules, and `output` shows the
result. Nothing here needs torch or a harness.
"""
