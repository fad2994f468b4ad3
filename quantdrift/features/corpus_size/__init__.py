"""Do more documents change more answers?"""

from quantdrift.cli import Command

COMMAND = Command(group="Measure", help=__doc__)
