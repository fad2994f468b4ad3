"""Size and place of the cache; --clear."""

from quantdrift.cli import Command

COMMAND = Command(group="Look around", help=__doc__)
