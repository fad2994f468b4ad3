"""The same embeddings as classes and as a search."""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
