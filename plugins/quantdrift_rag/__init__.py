"""Answers of a generator behind a quantized search."""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
