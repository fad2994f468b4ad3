"""What is installed, and what is missing?"""

from quantdrift.cli import Command

COMMAND = Command(group="Look around", help=__doc__)
