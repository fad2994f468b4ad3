"""Estimates with intervals, paired tests, no worse by a margin, sample sizes.

Nothing here needs `scipy.stats` or `scipy.optimize`, which take half a second to import.
"""
