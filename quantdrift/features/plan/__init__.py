"""How many inputs does a verdict need?"""

from quantdrift.cli import Command

COMMAND = Command(help=__doc__, form_of="gate")
