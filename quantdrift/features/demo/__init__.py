"""See it work: an embedded model and corpus inside mteb."""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
