"""Which deployment changes the fewest answers?"""

from quantdrift.cli import Command

COMMAND = Command(group="Trust and repair", help=__doc__)
