"""Metrics, models, quantizers, stages, tasks, suites there are."""

from quantdrift.cli import Command

COMMAND = Command(group="Look around", help=__doc__)
