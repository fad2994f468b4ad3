"""Write an allocation as runtimes read it."""

from quantdrift.cli import Command

COMMAND = Command(group="Trust and repair", help=__doc__, form_of="allocate")
