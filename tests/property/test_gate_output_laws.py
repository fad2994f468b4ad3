"""Laws of what tells of a judged run: text from outside comes through as text, and only as text."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from quantdrift.base.display import clean, prose, shown
from quantdrift.gate.output import junit_text, markdown_text, report_json
from support.gate_result_samples import nasty

SIGNS = st.text(alphabet="ab1 |`\\<>&;#[]()!*_~:/.@$-+='\"\n\t\x1b\u202e")
TEXTS = SIGNS | st.text(alphabet=st.characters(exclude_categories=()))
"""Signs that mean something somewhere; and anything, halves of surrogate pairs included."""


def inlines(text: str) -> list[Token]:
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return [token for token in reader.parse(text) if token.type == "inline"]


def read(token: Token) -> str:
    """What a reader sees, if there is nothing but text, code and the tags of code."""
    for child in token.children or ():
        assert child.type in {"text", "text_special", "code_inline", "html_inline"}
        if child.type == "html_inline":
            assert child.content in {"<code>", "</code>", "<wbr>"}
    return "".join(child.content for child in token.children or () if child.type != "html_inline")


@given(sentence=TEXTS)
def test_a_sentence_is_read_as_it_is(sentence: str) -> None:
    kept = clean(sentence)
    texts = [read(token) for token in inlines(f"- {prose(sentence)}\n- end")]
    assert texts == ([kept, "end"] if kept else ["end"])
    assert [read(token) for token in inlines(prose(sentence))] == ([kept] if kept else [])


@given(text=TEXTS, limit=st.integers(min_value=3, max_value=80))
def test_what_is_shown_is_one_line_of_a_greatest_length(text: str, limit: int) -> None:
    line = shown(text, limit)
    assert 0 < len(line) <= max(limit, len("(empty)"))
    assert (line.splitlines(), clean(line)) == ([line], line)
    line.encode()


@given(name=TEXTS)
def test_markdown_of_any_names_has_two_tables_and_no_tag_but_code(name: str) -> None:
    text = markdown_text(nasty(name, 1))
    text.encode()
    for token in inlines(text):
        read(token)
    lines = text.splitlines()
    assert sum(re.fullmatch(r"\|(---\|)+", line) is not None for line in lines) == 2


@given(name=TEXTS)
def test_junit_and_json_of_any_names_can_be_read(name: str) -> None:
    root = ElementTree.fromstring(junit_text(nasty(name, 1)).encode())
    assert [element.tag for element in root.iter()][:2] == ["testsuites", "testsuite"]
    assert len(list(root.iter("failure"))) == 1
    assert report_json(nasty(name, 1)).isascii()
