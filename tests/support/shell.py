"""Lines typed into a shell, as a page prints them."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.warm import warm


def typed(commands: Iterable[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Type commands one after the other in a folder, up to one that fails; what is printed is in `stdout`."""
    warm().shims(folder / "bin", quantdrift=["-m", "quantdrift"], python=[])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST_"))}
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    ours = {"PATH": path, "QUANTDRIFT_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    line = ["bash", "-e", "-c", "\n".join(commands)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(line, cwd=folder, env={**kept, **ours}, check=False, **pipes)
