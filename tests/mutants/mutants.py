"""Make every error of mutants.yaml in a copy, run its tests there, and name those that no test notices: `make mutants`.

python tests/mutants/mutants.py [WORD...]      # or only errors whose `why` or `file` has one of the words
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TESTED = (sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not very_slow")


def mutants() -> list[dict[str, str]]:
    """The errors, as the file has them."""
    listed: list[dict[str, str]] = yaml.safe_load((HERE / "mutants.yaml").read_text(encoding="utf-8"))
    return listed


def tested(place: Path, tests: str) -> int:
    """The exit code of some tests, in a copy of the repository."""
    paths = os.pathsep.join(str(place / part) for part in (".", "plugins", "tasks"))
    done = subprocess.run(
        [*TESTED, *tests.split()], cwd=place, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=False
    )
    return done.returncode


def main(words: list[str]) -> int:
    """Print what became of each; the number of those that survive."""
    asked = [it for it in mutants() if not words or any(word in it["why"] + it["file"] for word in words)]
    survivors = 0
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
