"""How many inputs does a verdict need?"""

from quantdrift.cli import Command

COMMAND = Command(group="Guard", help=__doc__, form_of="gate")
