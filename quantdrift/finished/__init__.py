"""Runs that somebody else finished: two lists of answers become evidence. Needs no torch."""
