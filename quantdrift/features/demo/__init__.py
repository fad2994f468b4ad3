"""See it work: a verdict on an embedded model and corpus."""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
