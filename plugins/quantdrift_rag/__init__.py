"""Which answers does a generator behind a quantized search change?"""

from quantdrift.parts import Command

COMMAND = Command(group="Measure", help=__doc__)
