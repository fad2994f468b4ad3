"""Lines typed into a shell, as a page prints them."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def typed(commands: Iterable[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Type commands one after the other in a folder, up to one that fails; what is printed is in `stdout`."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, called in {"quantdrift": "-m quantdrift", "python": ""}.items():
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {called} "$@"\n')
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST_"))}
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    ours = {"PATH": path, "QUANTDRIFT_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    line = ["bash", "-e", "-c", "\n".join(commands)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(line, cwd=folder, env={**kept, **ours}, check=False, **pipes)
