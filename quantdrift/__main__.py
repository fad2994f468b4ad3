"""`quantdrift` and `python -m quantdrift`: how a process of its own starts and ends."""

import atexit
import gc
import os

from quantdrift.base.display import flush
from quantdrift.cli import main


def script() -> None:
    """Run the command line in seconds less than torch and what stands on it would take by themselves."""
    gc.set_threshold(5_000, 10, 10)  # imports make many objects that stay
    # torch reads it when it is loaded: where another program has a core, threads that wait awake take thrice as long
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            atexit.register(_leave, end.code)
        raise


def _leave(code: int) -> None:
    """End after what else is to be done at the exit; to take apart all that was imported takes a second or two."""
    atexit.unregister(_leave)
    atexit._run_exitfuncs()
    flush()
    os._exit(code)


if __name__ == "__main__":
    script()
