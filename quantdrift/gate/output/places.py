"""Where the result goes: files that are asked for, and the places that a CI offers."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from quantdrift.display import json_text
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.gate.output.junit import SUITE, junit_text
from quantdrift.gate.output.markdown import TITLE, error_markdown, markdown_text
from quantdrift.gate.result import EXIT_CODES, GateResult
from quantdrift.records import check_writable, parse_json, write_text

__all__ = [
    "check_report",
    "exit_code",
    "report_json",
    "tell_ci",
    "tell_ci_of_error",
    "write_report",
]

SUMMARY = "GITHUB_STEP_SUMMARY"
OUTPUT = "GITHUB_OUTPUT"
"""Environment variables that hold a path, of GitHub and of those that run its actions."""

_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
"""A pipe is opened without waiting for who reads it."""

_MOST_SUMMARY = 1024 * 1024
"""Bytes. GitHub shows nothing of a step whose summary is longer."""

_WRITERS: dict[str, Callable[..., str]] = {
    ".md": markdown_text,
    ".markdown": markdown_text,
    ".xml": junit_text,
}
_SUFFIXES = (*_WRITERS, ".json")


def exit_code(result: GateResult, *, accept_underpowered: bool) -> int:
    """What the command ends with.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    accepted = accept_underpowered and result.verdict == "underpowered"
    return EXIT_CODES["pass"] if accepted else result.exit_code


def report_json(result: GateResult, *, accept_underpowered: bool = False) -> str:
    """A judged run as a JSON object, in ASCII; `exit_code` is what the command ends with.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    code = exit_code(result, accept_underpowered=accept_underpowered)
    content = {**result.to_json(), "exit_code": code}
    return f"{json_text(content)}\n"


def check_report(path: Path) -> None:
    """Refuse a place that cannot take a report, before hours go into one.

    Args:
        path: where it is to be written.

    Raises:
        QuantDriftError: the suffix tells no format, something other than a report is there, or
            it cannot be written to.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise QuantDriftError(
            f"the name of a report tells its format: expected .md or .markdown (Markdown), .xml "
            f"(JUnit) or .json; got {str(path)!r}"
        )
    if path.exists() and not _is_report(path):
        raise RunError(
            f"{path} holds something that is not a report of the gate; expected a new file or an "
            "earlier report to replace. Choose another place."
        )
    check_writable(path, what="the report")


def _is_report(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            return True
        if path.suffix.lower() == ".json":
            content = parse_json(text)
            return isinstance(content, dict) and {"verdict", "rules"} <= content.keys()
    except (OSError, ValueError):
        return False
    if path.suffix.lower() == ".xml":
        return f'<testsuites name="{SUITE}"' in text
    return text.startswith(TITLE)


def write_report(result: GateResult, path: Path, *, accept_underpowered: bool = False) -> None:
    """Write a report whole, replacing an earlier one; the suffix tells its format.

    Args:
        result: a judged run.
        path: the file: .md or .markdown, .xml (JUnit) or .json.
        accept_underpowered: whether too few inputs end in success.

    Raises:
        QuantDriftError: no format has that suffix, something else is there, or it cannot be
            written.
    """
    check_report(path)
    writer = _WRITERS.get(path.suffix.lower(), report_json)
    write_text(path, writer(result, accept_underpowered=accept_underpowered), what="the report")


def tell_ci(
    result: GateResult, environ: Mapping[str, str], *, accept_underpowered: bool = False
) -> list[str]:
    """Tell the CI: Markdown for its summary page, and the verdict for the steps that follow.

    Args:
        result: a judged run.
        environ: environment variables.
        accept_underpowered: whether too few inputs end in success.

    Returns:
        Notes: what could not be written. The gate's verdict does not depend on it.
    """
    code = exit_code(result, accept_underpowered=accept_underpowered)
    text = markdown_text(result, accept_underpowered=accept_underpowered)
    return _tell(environ, text, result.verdict, code)


def tell_ci_of_error(message: str, environ: Mapping[str, str]) -> list[str]:
    """Tell the CI that nothing was judged, and why.

    Args:
        message: of the error.
        environ: environment variables.

    Returns:
        Notes, as `tell_ci`.
    """
    return _tell(environ, error_markdown(message), "error", EXIT_CODES["error"])


def _tell(environ: Mapping[str, str], text: str, verdict: str, code: int) -> list[str]:
    notes = []
    if place := environ.get(SUMMARY):
        notes += _append(Path(place), text, "the summary", SUMMARY, most=_MOST_SUMMARY)
    if place := environ.get(OUTPUT):
        lines = f"verdict={verdict}\nexit-code={code}\n"
        notes += _append(Path(place), lines, "the outputs", OUTPUT)
    return notes


def _append(
    path: Path, text: str, what: str, variable: str, *, most: int | None = None
) -> list[str]:
    """Add to what others wrote; a note if that cannot be done."""
    try:
        place = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _AT_ONCE, 0o666)
        if not stat.S_ISREG(os.fstat(place).st_mode):
            os.close(place)
            return [
                f"{what} of the CI was not written to {path} ({variable}): expected a file; it is "
                "a pipe or a device"
            ]
        with open(place, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            start = "" if file.read() in {b"", b"\n"} else "\n"  # it may end within a line
            added = f"{start}{text}".encode()
            if most is not None and size + len(added) > most:
                return [
                    f"{what} of the CI was not written: with what is there ({size:,} bytes) it "
                    f"would be longer than {most:,} bytes, and none of it would be shown"
                ]
            file.write(added)
    except OSError as error:
        return [f"{what} of the CI was not written to {path} ({variable}): {error.strerror}"]
    return []
