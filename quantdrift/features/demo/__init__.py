"""The main job on an embedded model."""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
