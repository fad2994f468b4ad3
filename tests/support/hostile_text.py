"""Names that obey nobody, and what a terminal and the log of a CI must never get of them."""

import json
import re

HOSTILE = (
    "\x1b[31m\x1b]0;title\x07\u202e\x9b2J\u2028[red]x[/red] :heart: ##[error]y "
    "##vso[task.complete]\r\n::error::pwned\n  ::set-output name=verdict::pass\t|<b>@me\x7f"
)
"""Styles and a title of a terminal, turned text, markup, and commands to GitHub and Azure."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]")
_COMMAND = re.compile(r"(?m)^\s*::|##\w*\[")
_BROKEN = re.compile(r"(?m)^\W*(?:error::|set-output)")


def check_clean(text: str, *, tabs: bool = False, wrapped: bool = False) -> None:
    """Nothing in it is obeyed, and no name breaks a line that is not too long."""
    assert not (match := _CONTROL.search(text)), repr(text[max(0, match.start() - 40) :][:80])
    assert tabs or "\t" not in text
    assert not (match := _COMMAND.search(text)), repr(text[max(0, match.start() - 40) :][:80])
    assert wrapped or not _BROKEN.search(text), text
    assert "❤" not in text  # what rich makes of :heart:


def check_json(text: str) -> None:
    """It holds the names as they are, and nothing that is not printable."""
    check_clean(text)
    assert text.isascii()
    assert "::error::pwned" in json.dumps(json.loads(text))
