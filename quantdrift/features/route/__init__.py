"""Send unsure inputs to full precision: does it pay?"""

from quantdrift.cli import Command

COMMAND = Command(group="Trust and repair", help=__doc__)
