"""Does a folder or server give what was simulated?"""

from quantdrift.parts import Command

COMMAND = Command(group="Guard", help=__doc__)
