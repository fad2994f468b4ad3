"""Choose which layers get more bits."""

from quantdrift.cli import Command

COMMAND = Command(group="Trust and repair", help=__doc__)
