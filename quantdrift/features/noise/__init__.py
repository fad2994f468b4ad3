"""How much of a flip rate is the runtime itself?"""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
