"""Folders of the project, and of the shared data beside it, which may be absent; and its scripts as modules."""

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"


def module_at(file: Path) -> Any:
    """The module in a file that is in no package."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
