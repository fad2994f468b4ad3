"""`python -m quantdrift`."""

from quantdrift.cli import main

main()
