"""My model, my data: may I ship it, what breaks, what to do?"""

from quantdrift.cli import Command

COMMAND = Command(group="Begin here", help=__doc__)
