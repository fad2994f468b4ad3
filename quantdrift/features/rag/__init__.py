"""Answers of a generator behind a quantized search."""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help="Answers of a generator behind a quantized search.")
