"""Metrics of finished runs, with intervals; --by separation."""

from quantdrift.cli import Command

COMMAND = Command(group="Read finished runs", help=__doc__)
