"""The gate: a finished run against rules and a committed baseline, ending in a verdict.

`target` is what is judged, `rules` what is asked of it, `baseline` what it is compared with; `judge` brings them
together, and `output` tells it. Nothing here needs torch or a harness.
"""
