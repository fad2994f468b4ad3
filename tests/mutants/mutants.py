"""Make every error of mutants.yaml in a copy, run its tests there, and name those that no test notices: `make mutants`.

python tests/mutants/mutants.py [WORD...]      # or only errors whose `why` or `file` has one of the words
"""

import importlib
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OPTIONS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not very_slow")
HEAVY = ("torch", "pandas", "pyarrow.parquet", "scipy.stats", "scipy.optimize", "hypothesis", "sentence_transformers")
"""Packages that are imported once, before a process is split off for every error."""


def mutants() -> list[dict[str, str]]:
    """The errors, as the file has them."""
    listed: list[dict[str, str]] = yaml.safe_load((HERE / "mutants.yaml").read_text(encoding="utf-8"))
    return listed


def tested(place: Path, tests: str) -> int:
    """The exit code of some tests, in a copy of the repository and a process of its own."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for name in [name for name in sys.modules if name.startswith("quantdrift")]:
        del sys.modules[name]  # of the start-up file
    os.chdir(place)
    paths = [str(place / part) for part in (".", "plugins", "tasks", "tests")]
    sys.path[:0], os.environ["PYTHONPATH"] = paths, os.pathsep.join(paths)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os._exit(pytest.main([*OPTIONS, *tests.split()]))


def main(words: list[str]) -> int:
    """Print what became of each; the number of those that survive."""
    asked = [it for it in mutants() if not words or any(word in it["why"] + it["file"] for word in words)]
    survivors = 0
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(None, files.splitlines()):
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes((ROOT / name).read_bytes())
        for tests in dict.fromkeys(it["tests"] for it in asked):
            if tested(place, tests):
                sys.exit(f"{tests} fails without any error made")
        for it in asked:
            source = (place / it["file"]).read_text(encoding="utf-8")
            (place / it["file"]).write_text(source.replace(it["old"], it["new"]), encoding="utf-8")
            survives = tested(place, it["tests"]) == 0
            survivors += survives
            print(f"{'SURVIVES' if survives else 'killed  '} {it['file']}: {it['why']}", flush=True)
            (place / it["file"]).write_text(source, encoding="utf-8")
    print(f"{survivors} of {len(asked)} survive")
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
