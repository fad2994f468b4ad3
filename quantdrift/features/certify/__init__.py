"""Which answers can be trusted, without labels?"""

from quantdrift.cli import Command

COMMAND = Command(group="Trust and repair", help=__doc__)
