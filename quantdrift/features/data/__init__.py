"""Read your own table of queries and documents, and say what is in it."""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
