"""Weights, embeddings, index: which changes answers?"""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
