"""The commands `quantdrift` and `python -m quantdrift`: start and end of their process."""

import atexit
import gc
import os

from quantdrift.base.display import flush
from quantdrift.cli import main


def script() -> None:
    """Run the command line, with settings that save seconds of torch's start and end."""
    gc.set_threshold(5_000, 10, 10)  # imports make many objects that are never freed
    # torch reads it when loaded: beside another busy program, threads that spin while waiting take thrice as long
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            atexit.register(_leave, end.code)
        raise


def _leave(code: int) -> None:
    """End the process after all exit functions; freeing all imported modules would take a second or two."""
    atexit.unregister(_leave)
    atexit._run_exitfuncs()
    flush()
    os._exit(code)


if __name__ == "__main__":
    script()
