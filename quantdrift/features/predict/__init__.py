"""Estimate flips at every width, quantizing nothing."""

from quantdrift.cli import Command

COMMAND = Command(help=__doc__, form_of="allocate")
