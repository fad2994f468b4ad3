"""Answers of a generator behind a quantized search."""

from quantdrift.parts import Command

COMMAND = Command(group="Measure", help=__doc__)
