"""How many answers change without quantization?"""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
