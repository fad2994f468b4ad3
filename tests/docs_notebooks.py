"""The notebooks of docs/tutorials, with what their cells print: `python tests/docs_notebooks.py` writes that."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.places import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
_MARK = "--- cell ends ---"


def printed(notebook: Path) -> list[str]:
    """Run the cells in a process of its own, in the notebook's folder; what each one printed."""
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) + f"\nprint({_MARK!r})" for cell in cells)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=notebook.parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout.split(f"{_MARK}\n")[:-1]


def main() -> None:
    """Run all of them, and write what they print into them."""
    for notebook in NOTEBOOKS:
        content: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        for number, (cell, text) in enumerate(zip(cells, printed(notebook), strict=True), start=1):
            lines = text.splitlines(keepends=True)
            cell["execution_count"] = number
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
