"""What there is to name."""

from quantdrift.cli import Command

COMMAND = Command(group="Look around", help="Metrics, models, quantizers, tasks or suites there are.")
