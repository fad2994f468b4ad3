"""Is the model still the one that built the index?"""

from quantdrift.parts import Command

COMMAND = Command(group="Guard", help=__doc__)
