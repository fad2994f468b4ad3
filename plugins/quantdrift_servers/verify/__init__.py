"""Does a folder or server give the simulated embeddings?"""

from quantdrift.parts import Command

COMMAND = Command(group="Guard", help=__doc__)
