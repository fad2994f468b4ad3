"""A harness's own tests, with quantdrift installed and without: the same outcomes, test by test.

    python tests/matrix/peer_suite.py CHECKOUT/tests --without STOCK/bin/python [--with PYTHON]

CHECKOUT is a clone of the harness, of the version that is installed; STOCK an environment that has
the harness and pytest but not quantdrift. Tests that need a network fail in both, which counts as
the same.
"""

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def outcomes(python: str, tests: list[str], cwd: Path) -> dict[str, str]:
    """Test to "passed", "failure", "error" or "skipped"."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [python, "-m", "pytest", *tests, "-q", "-p", "no:cacheprovider", "--no-header"]
        # its own options ask for plugins of pytest that repeat what needs the network
        command += ["-o", "addopts=", "--continue-on-collection-errors", f"--junitxml={report}"]
        ended = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
        if not report.exists():
            sys.exit(f"pytest wrote no report:\n{ended.stderr or ended.stdout}")
        kinds_of = {}
        for case in ET.parse(report).getroot().iter("testcase"):
            kinds = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
            kinds_of[f"{case.get('classname')}::{case.get('name')}"] = (kinds or ["passed"])[0]
        return kinds_of


def has_quantdrift(python: str) -> bool:
    """Whether an interpreter can import quantdrift."""
    probe = [python, "-c", "import quantdrift"]
    return subprocess.run(probe, cwd="/", check=False, capture_output=True).returncode == 0


def main() -> int:
    """Print the counts and what differs; 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="+", help="what pytest is to run, below one checkout")
    parser.add_argument("--without", required=True, help="interpreter that has no quantdrift")
    parser.add_argument("--with", dest="having", default=sys.executable, help="one that has it")
    given = parser.parse_args()
    if has_quantdrift(given.without) or not has_quantdrift(given.having):
        parser.error(f"expected quantdrift in {given.having} and not in {given.without}")
    tests = [str(Path(test).absolute()) for test in given.tests]
    cwd = Path(tests[0]).parent
    stock, ours = (outcomes(python, tests, cwd) for python in (given.without, given.having))
    for name, results in (("without quantdrift", stock), ("with quantdrift", ours)):
        print(f"{name}: {dict(sorted(Counter(results.values()).items()))}")
    different = sorted(n for n in stock.keys() | ours.keys() if stock.get(n) != ours.get(n))
    for name in different:
        print(f"{name}: {stock.get(name)} without, {ours.get(name)} with")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
