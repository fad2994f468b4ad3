"""All finished runs in a browser, two side by side."""

from quantdrift.cli import Command

COMMAND = Command(group="Read finished runs", help=__doc__)
