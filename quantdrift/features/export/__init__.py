"""Write an allocation as runtimes read it."""

from quantdrift.cli import Command

COMMAND = Command(help=__doc__, form_of="allocate")
