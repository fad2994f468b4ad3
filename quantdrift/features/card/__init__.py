"""What quantization changed, for a model card."""

from quantdrift.cli import Command

COMMAND = Command(help=__doc__, form_of="report")
