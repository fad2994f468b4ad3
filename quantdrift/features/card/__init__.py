"""What quantization changed, for a model card."""

from quantdrift.cli import Command

COMMAND = Command(group="Read finished runs", help=__doc__, form_of="report")
