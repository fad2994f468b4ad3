"""Folders of the project, and of the shared data beside it, which may be absent."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
