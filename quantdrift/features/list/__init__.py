"""Metrics, models, quantizers, stages, encoders, tasks, suites."""

from quantdrift.cli import Command

COMMAND = Command(group="Look around", help=__doc__)
