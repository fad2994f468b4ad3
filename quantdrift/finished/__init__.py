"""Runs that other programs finished: two lists of answers become evidence. Needs no torch."""
