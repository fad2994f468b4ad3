"""The start-up hook in the environment as it is installed, in Pythons that have just started."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

try:
    metadata.distribution("quantdrift")
except metadata.PackageNotFoundError:
    pytest.skip("quantdrift is not installed here, so nothing starts its hook", allow_module_level=True)

REPORT = """
import json, sys
hook = sys.modules.get("quantdrift._hook")
modules = sorted(sys.modules)
finder = hook.installed_finder() if hook else None
print(json.dumps({
    "started_by": finder and finder.started_by,
    "first": type(sys.meta_path[0]).__name__,
    "ours": sum(getattr(f, "is_quantdrift_hook", False) for f in sys.meta_path),
    "modules": modules,
}))
"""


def start_python(*options: str, cwd: Path, code: str = REPORT, switch: str | None = None) -> Any:
    """What a new Python prints as JSON; it must print nothing else."""
    environment = {k: v for k, v in os.environ.items() if k not in ("QUANTDRIFT_HOOK", "PYTHONPATH")}
    if switch is not None:
        environment["QUANTDRIFT_HOOK"] = switch
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("options", [["-I"], ["-W", "error"]])
def test_every_new_python_starts_with_the_hook_in_front(options: list[str], tmp_path: Path) -> None:
    report = start_python(*options, cwd=tmp_path)
    assert report["started_by"] == ("start" if sys.version_info >= (3, 15) else "pth")
    assert (report["first"], report["ours"]) == ("HookFinder", 1)


def test_the_start_loads_only_the_hook_itself(tmp_path: Path) -> None:
    with_hook, switched_off = (start_python("-I", cwd=tmp_path, switch=switch) for switch in (None, "0"))
    assert switched_off["ours"] == 0
    added = set(with_hook["modules"]) - set(switched_off["modules"])
    assert added == {"__future__", "quantdrift", "quantdrift._hook"}
