"""A small package of somebody else's, installed beside quantdrift: a module and its entry points."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def install(site: Path, name: str, source: str, points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write a module and the metadata that pip would write; entry points by group and name."""
    (site / f"{name}.py").write_text(source, encoding="utf-8")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    listed = "".join(f"[{group}]\n" + "".join(f"{n} = {at}\n" for n, at in of.items()) for group, of in points.items())
    (info / "entry_points.txt").write_text(listed)
    return site


def quantdrift(site: Path, *words: object, cwd: Path, code: int = 0) -> str:
    """Return what a `quantdrift` says that finds what is installed there: its output, or the error that it ends in."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "quantdrift", *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr
