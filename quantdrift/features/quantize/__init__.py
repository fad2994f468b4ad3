"""Write the quantized model to a folder."""

from quantdrift.cli import Command

COMMAND = Command(group="Trust and repair", help=__doc__)
