"""What is kept from run to run: where, how much; --clear."""

from quantdrift.cli import Command

COMMAND = Command(group="Look around", help=__doc__)
