"""The hooks of pytest: options, the fixture and the summary.

pytest imports this in every session of an environment that has quantdrift, so it imports nothing but pytest.
"""

from collections.abc import Generator
from typing import Any

import pytest

from quantdrift_pytest import session as sessions
from quantdrift_pytest.assertion import Drifts
from quantdrift_pytest.session import ASSERTED

_ON_REPORT = "quantdrift"
"""Attribute of a report with the test's assertions; pytest-xdist transfers it from the worker."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("quantdrift", "drift of quantized models")
    for name, what in (
        ("update", "Write the baselines that tests name, instead of comparing with them; limits still hold."),
        ("no-cache", "Measure anew, without runs and embeddings of earlier sessions."),
    ):
        group.addoption(f"--quantdrift-{name}", action="store_true", help=what)


def pytest_configure(config: pytest.Config) -> None:
    """Begin a session."""
    sessions.begin(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a session."""
    sessions.end(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist the id of its session."""
    node.workerinput[sessions.WORKER] = sessions.current().id


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note which test is running."""
    running = sessions.current()
    before, running.item = running.item, item
    item.stash[ASSERTED] = []
    try:
        return (yield)
    finally:
        running.item = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add a test's assertions to its report, which reaches the controller of pytest-xdist."""
    report = yield
    if asserted := item.stash.get(ASSERTED, []):
        setattr(report, _ON_REPORT, asserted[:])
        asserted.clear()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the tests' assertions."""
    sessions.current().asserted += getattr(report, _ON_REPORT, [])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the baselines, in one process only."""
    running = sessions.current()
    if session.config.getoption("quantdrift_update") and not sessions.is_worker(session.config):
        from quantdrift_pytest.drift import write_asked  # noqa: PLC0415 -- numpy, pyarrow

        broken_off = exitstatus in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR}
        broken_off = broken_off or bool(session.shouldfail or session.shouldstop)  # -x
        running.written, whole = write_asked(running, broken_off=broken_off)
        if not whole and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List the assertions that did not pass, or all of them with -v, and the baselines that were written."""
    running = sessions.current()
    verbose = config.get_verbosity() > 0
    lines = [note["line"] for note in running.asserted if note["line"] and (verbose or not note["passed"])]
    if lines or running.written:
        from quantdrift.base.display import one_line, printable  # noqa: PLC0415 -- only where it tells

        terminalreporter.write_sep("=", "quantdrift")
        for line in [*lines, *running.written]:
            terminalreporter.write_line(printable(one_line(line)))


@pytest.fixture
def drift() -> Drifts:
    """Measure a pair: `drift("minilm@W4-rtn", data="data/faq")`."""
    return Drifts(session=sessions.current())
