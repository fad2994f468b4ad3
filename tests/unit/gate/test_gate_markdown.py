"""A judged run as Markdown, read back with markdown-it: nothing from outside marks anything up."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from quantdrift.display import clean, code, prose, shown
from quantdrift.gate.judge import GateResult
from quantdrift.gate.output import MOST_BYTES, error_markdown, markdown_text
from support.gate_result_samples import FEW, IDENTITY, LIMIT, NASTY, WORSE, judgement, no_baseline, result
from support.gate_result_samples import worst as worst_input


def parsed(text: str) -> list[Token]:
    """As GitHub reads it, with HTML let through."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def inline_types(tokens: list[Token]) -> set[str]:
    return {child.type for token in tokens for child in token.children or ()}


def words_of(token: Token) -> str:
    """What a reader sees of an inline token."""
    return "".join(
        child.content for child in token.children or () if child.type in {"text", "text_special", "code_inline"}
    )


def outside_code(tokens: list[Token]) -> str:
    """What is read outside of code, where GitHub looks for links, mentions, emoji and formulas."""
    found, inside = [], False
    for token in tokens:
        for child in token.children or ():
            if child.type == "html_inline":
                inside = child.content == "<code>" or (inside and child.content != "</code>")
            elif child.type in {"text", "text_special"} and not inside:
                found.append(child.content)
    return " ".join(found)


def tables(text: str) -> list[list[list[str]]]:
    """Of every table the rows, the head first, with the cells as they are read."""
    found: list[list[list[str]]] = []
    cell = False
    for token in parsed(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in {"th_open", "td_open"}:
            cell = True
        elif token.type == "inline" and cell:
            found[-1][-1].append(words_of(token))
            cell = False
    return found


def html_of(text: str) -> list[str]:
    """All tags that are let through."""
    tokens = parsed(text)
    blocks = [token.content for token in tokens if token.type == "html_block"]
    inline = [child.content for token in tokens for child in token.children or () if child.type == "html_inline"]
    return re.findall(r"<[^>]*>", "".join([*blocks, *inline]))


def nasty(name: str, n: int) -> GateResult:
    """A run in which everything that comes from outside is that name."""
    rule = replace(WORSE.rule, on=name)
    return result(
        replace(WORSE, rule=rule, reason=f"shown {name} to be worse"),
        judgement("flip@1 no worse by 0.03", "incomparable", f"no {name}"),
        identity=replace(IDENTITY, spec=name, data=name),
        baseline=replace(IDENTITY, spec=f"{name} of then"),
        differs=(f"setting {name}: {name} in the baseline, {name} now", name),
        notes=(name, f"{name} differs"),
        worst=tuple(worst_input(name, name, name, part=name) for _ in range(n)),
    )


def test_title_subject_headline_and_rules_by_hand() -> None:
    text = markdown_text(no_baseline(LIMIT))
    assert text == (
        "## quantdrift gate: pass\n\n"
        "`minilm@W4-rtn` on cranfield (test), 1,509 inputs.\n\n"
        "pass: `flip@1` <= 0.25 holds\n\n"
        "| rule | now (95 %) | n (needed) | outcome |\n"
        "|---|---|---|---|\n"
        "| `flip@1 <= 0.25` | 24.4 % (22.3 to 26.6) | 1,509 | pass |\n\n"
        "- 312 of 1,509 inputs have another first answer than the reference.\n"
    )


def test_up_to_five_inputs_stand_in_the_open_and_more_are_folded() -> None:
    five = markdown_text(result(WORSE, worst=tuple(worst_input(f"q{n}") for n in range(5))))
    assert "<details>" not in five
    assert "\n5 of 312 changed inputs, the worst first:\n\n| input |" in five
    six = markdown_text(result(WORSE, worst=tuple(worst_input(f"q{n}") for n in range(6))))
    assert html_of(six) == ["<details>", "<summary>", "</summary>", "</details>"]
    assert "<summary>6 of 312 changed inputs, the worst first</summary>\n\n| input |" in six
    for text, n in ((five, 5), (six, 6)):
        rules, inputs = tables(text)
        assert len(rules) == 2
        assert [row[0] for row in inputs] == ["input", *(f"q{row}" for row in range(n))]
    assert len(tables(markdown_text(result(WORSE)))) == 1


def test_accepted_is_said_in_the_title() -> None:
    title = "## quantdrift gate: underpowered (accepted)\n"
    assert markdown_text(result(FEW), accept_underpowered=True).startswith(title)
    assert markdown_text(result(FEW)).startswith("## quantdrift gate: underpowered\n")
    failed = markdown_text(result(WORSE, FEW), accept_underpowered=True)
    assert failed.startswith("## quantdrift gate: fail\n")


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_code_and_reads_as_it_is(name: str) -> None:
    alone, cell = code(name), f"| a | b |\n|---|---|\n| {code(name)} | 1 |"
    assert [words_of(each) for each in parsed(alone)[1:2]] == [clean(name)] * bool(clean(name))
    assert tables(cell) == [[["a", "b"], [clean(name), "1"]]]
    for text in (alone, cell):
        assert outside_code(parsed(text)) in {"", "a b 1"}
        assert set(html_of(text)) <= {"<code>", "</code>", "<wbr>"}


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("n", [1, 6])
def test_no_name_marks_anything_up(name: str, n: int) -> None:
    text = markdown_text(nasty(name, n))
    tokens = parsed(text)
    kinds = {token.type for token in tokens}
    blocks = ("heading", "paragraph", "bullet_list", "list_item", "table", "thead", "tbody")
    lower = ("tr", "th", "td")
    assert kinds <= {f"{kind}_{end}" for kind in (*blocks, *lower) for end in ("open", "close")} | {
        "inline",
        "html_block",
    }
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h2"]
    # of lists there is one, and nothing in it is a list
    assert sum(token.type == "bullet_list_open" for token in tokens) == 1
    assert inline_types(tokens) <= {"code_inline", "text", "text_special", "html_inline"}
    ours = ["<details>", "<summary>", "</summary>", "</details>"] if n == 6 else []
    tags = [tag for tag in html_of(text) if tag not in {"<code>", "</code>", "<wbr>"}]
    assert tags == ours
    # nothing that GitHub would make a link of stands outside of code
    plain = outside_code(tokens)
    for sign in ("www.", "http://", "@", "#", ":tada:", "$", "\u202e", "\x1b"):
        assert sign not in plain


@pytest.mark.parametrize("name", NASTY)
def test_tables_keep_their_columns_whatever_the_names(name: str) -> None:
    rules, inputs = tables(markdown_text(nasty(name, 2)))
    assert len(rules) == 3
    assert len({len(row) for row in rules}) == 1
    assert len(inputs) == 3
    assert len({len(row) for row in inputs}) == 1
    place = inputs[0].index("input")
    assert [row[place] for row in inputs[1:]] == [shown(name)] * 2
    assert [row[-1] for row in inputs[1:]] == ["new"] * 2


@pytest.mark.parametrize("name", NASTY)
def test_a_sentence_with_a_name_in_it_reads_as_it_was(name: str) -> None:
    for sentence in (f"the baseline is of {name}.", f"({name}), {name}", name):
        tokens = parsed(f"- {prose(sentence)}\n- next")
        read = [words_of(token) for token in tokens if token.type == "inline"]
        kept = clean(sentence)
        assert read == ([kept, "next"] if kept else ["next"])


def test_plain_words_of_a_sentence_stay_as_they_are() -> None:
    line = "Note: torch differs: 2.6.0+cpu in the baseline (of 1,509 inputs), don't ask; 95 % or -."
    assert prose(line).replace("`don't`", "don't") == line
    assert prose("flip@1 gold_lost@10 --update a/b") == "`flip@1` `gold_lost@10` `--update` a/b"
    # GitHub makes a link of the first, and not of the second
    assert prose("see www.") == "see `www`."
    assert prose("see wwwx.") == "see wwwx."
    # at the start of a line these would be a list, a quotation and a rule
    assert prose("1. one") == "`1`. one"
    assert prose("- one") == "`-` one"
    assert prose(">= 3") == "`>=` 3"


def test_an_address_in_code_of_the_second_kind_is_kept_apart() -> None:
    assert code("a|b@c.de") == "<code>a&#124;b&#64;<wbr>c&#46;de</code>"


def test_the_text_stays_below_the_limit_of_the_summary() -> None:
    name = "|`" * 200
    many = nasty(name, 5000)
    rules = tuple(replace(WORSE, rule=replace(WORSE.rule, on=f"{n} {name}")) for n in range(300))
    text = markdown_text(replace(many, judgements=rules, notes=(name,) * 300))
    assert MOST_BYTES * 0.9 < len(text.encode()) <= MOST_BYTES
    rules_table, inputs = tables(text)
    assert len(rules_table) == 101
    assert "And 200 more rules." in text
    assert re.search(r"- And [0-9]{3} more sentences, which the terminal shows\.\n", text)
    listed = len(inputs) - 1
    assert f"\nAnd {5000 - listed:,} more, for which there is no room.\n" in text
    assert text.endswith("</details>\n")


def test_an_error_is_told_line_by_line() -> None:
    text = error_markdown("expected <b>one</b> run:\n  a_b\n\n  c")
    assert text == "## quantdrift gate: error\n\nexpected `<b>one</b>` run:\n\n`a_b`\n\nc\n"
