"""Why do two runtimes of a model differ?"""

from quantdrift.cli import Command

COMMAND = Command(group="Look around", help=__doc__)
