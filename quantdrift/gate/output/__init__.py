"""A judged run as people and machines read it: sentences, Markdown, JUnit XML, and where they go.

`words` and `cells` are what a terminal and Markdown share. Nothing here needs torch or a CI.
"""

from __future__ import annotations

from quantdrift.gate.output.cells import rows, worst_rows, worst_title
from quantdrift.gate.output.junit import junit_text
from quantdrift.gate.output.markdown import markdown_text
from quantdrift.gate.output.places import tell_ci, write_report
from quantdrift.gate.output.words import headline, sentences, subject

__all__ = [
    "headline",
    "junit_text",
    "markdown_text",
    "rows",
    "sentences",
    "subject",
    "tell_ci",
    "worst_rows",
    "worst_title",
    "write_report",
]
