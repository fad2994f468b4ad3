"""Is the model still the one of the index?"""

from quantdrift.parts import Command

COMMAND = Command(group="Guard", help=__doc__)
