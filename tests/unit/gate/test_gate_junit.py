"""A judged run as JUnit XML: what Jenkins, GitLab and Azure need of it.

Jenkins: `testsuite` with name, tests, failures and errors; `testcase` with a name and a classname
that is not empty; at least one test case. GitLab: the content of failure, error and skipped, one of
them at most; names of test cases that differ.
"""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from quantdrift.gate.judge import GateResult
from quantdrift.gate.output import junit_text
from support.gate_result_samples import (
    BROKEN,
    FEW,
    IDENTITY,
    LIMIT,
    NASTY,
    OTHER,
    UNDEFINED,
    WORSE,
    no_baseline,
    result,
    worst,
)

KINDS = {"failure", "error", "skipped"}


def suite_of(judged: GateResult, **options: bool) -> ElementTree.Element:
    """The one suite, after a look at what every reader needs."""
    root = ElementTree.fromstring(junit_text(judged, **options).encode())
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    cases = suite.findall("testcase")
    assert cases
    assert len({case.attrib["name"] for case in cases}) == len(cases)
    counts = {"tests": len(cases)}
    for kind in KINDS:
        counts[kind] = sum(case.find(kind) is not None for case in cases)
    for element in (root, suite):
        assert element.attrib["name"] == "quantdrift gate"
        assert int(element.attrib["tests"]) == counts["tests"]
        assert int(element.attrib["failures"]) == counts["failure"]
        assert int(element.attrib["errors"]) == counts["error"]
    assert int(suite.attrib["skipped"]) == counts["skipped"]
    for case in cases:
        assert case.attrib["classname"] == "quantdrift.gate"
        assert float(case.attrib["time"]) == 0
        found = [child for child in case if child.tag in KINDS]
        assert len(found) <= 1
        assert all(child.text and child.text.strip() for child in case)
    return suite


def outcome_of(case: ElementTree.Element) -> tuple[str, str]:
    for child in case:
        if child.tag in KINDS:
            return child.tag, child.attrib["type"]
    return "passed", ""


def test_a_case_for_every_rule() -> None:
    suite = suite_of(result(WORSE, LIMIT, FEW, OTHER_MRR, UNDEFINED))
    assert [outcome_of(case) for case in suite.findall("testcase")] == [
        ("failure", "fail"),
        ("passed", ""),
        ("failure", "underpowered"),
        ("error", "incomparable"),
        ("error", "error"),
    ]
    assert suite.attrib["tests"] == "5"
    assert suite.attrib["failures"] == "2"
    assert suite.attrib["errors"] == "2"
    assert suite.findall("testcase")[0].attrib["name"] == ("minilm@W4-rtn on cranfield (test): flip@1 no worse by 0.03")


OTHER_MRR = replace(OTHER, rule=replace(OTHER.rule, number=0.05))


def test_too_few_inputs_are_skipped_where_that_is_accepted() -> None:
    suite = suite_of(result(WORSE, FEW), accept_underpowered=True)
    assert [outcome_of(case) for case in suite.findall("testcase")] == [
        ("failure", "fail"),
        ("skipped", "underpowered"),
    ]
    alone = suite_of(result(FEW), accept_underpowered=True)
    assert (alone.attrib["failures"], alone.attrib["skipped"]) == ("0", "1")


def test_properties_say_who_was_judged() -> None:
    suite = suite_of(result(WORSE, baseline=replace(IDENTITY, spec="minilm@W4-gptq")))
    found = {each.attrib["name"]: each.attrib["value"] for each in suite.iter("property")}
    assert found == {
        "spec": "minilm@W4-rtn",
        "data": "cranfield (test)",
        "baseline": "minilm@W4-gptq",
        "n_inputs": "1509",
        "alpha": "0.05",
        "verdict": "fail",
    }
    bare = suite_of(no_baseline(LIMIT))
    values = {each.attrib["name"]: each.attrib["value"] for each in bare.iter("property")}
    assert values["baseline"] == "-"


def test_the_content_says_everything_as_some_readers_show_nothing_else() -> None:
    judged = result(WORSE, BROKEN, worst=(worst(),), notes=("torch differs",))
    failure = suite_of(judged).find("testcase/failure")
    assert failure is not None
    assert failure.attrib["message"] == "shown to be worse"
    assert failure.text == (
        "shown to be worse\n"
        "\n"
        "rule: flip@1 no worse by 0.03\n"
        "now (95 %): 24.4 % (22.3 to 26.6)\n"
        "baseline: 20.0 %\n"
        "difference (95 %): +4.4 pp (+2.1 to +6.8)\n"
        "worse / better: 100 / 34\n"
        "n (needed): 1,509\n"
        "p worse (Holm): <0.001\n"
        "p no worse: 0.900\n"
        "outcome: fail\n"
        "\n"
        "312 of 1,509 inputs have another first answer than the reference; "
        "25 of them had not in the baseline.\n"
        "On 40 inputs the candidate answers otherwise than in the baseline.\n"
        "flip@1 no worse by 0.03 failed: shown to be worse "
        "(100 inputs worse than in the baseline, 34 better).\n"
        "Look at the inputs listed and repair what made them worse. If the change is meant, accept "
        "it with --update and commit the new baseline.\n"
        "flip@1 no worse by 0.03: 3 inputs are left out of the tests, as noise alone changes "
        "them.\n"
        "Note: torch differs.\n"
        "\n"
        "1 of 312 changed inputs, the worst first:\n"
        "input q7; reference's answer d1; now at rank 3; candidate's answer d9; "
        "labels right to wrong; lead 0.0123; new new"
    )


def test_a_case_that_passes_holds_its_numbers_and_an_error_no_inputs() -> None:
    cases = suite_of(result(LIMIT, UNDEFINED, worst=(worst(),))).findall("testcase")
    assert cases[0].findtext("system-out") == (
        "rule: flip@1 <= 0.25\nnow (95 %): 24.4 % (22.3 to 26.6)\nn (needed): 1,509\noutcome: pass"
    )
    error = cases[1].findtext("error")
    assert error is not None
    assert "Measure what the rule needs, or leave the rule out." in error
    assert "q7" not in error
    # numbers that this rule has not are not listed
    assert "\n\nrule: noise_floor <= 0.05\noutcome: error\n\n" in error


@pytest.mark.parametrize("name", NASTY)
def test_whatever_the_names_it_can_be_read(name: str) -> None:
    judged = result(
        replace(WORSE, reason=name, rule=replace(WORSE.rule, on=name)),
        replace(OTHER, reason=name),
        identity=replace(IDENTITY, spec=name, data=name),
        baseline=replace(IDENTITY, spec=name),
        differs=(name,),
        notes=(name,),
        worst=(worst(name, name, name, part=name),),
    )
    suite = suite_of(judged)
    assert len(suite.findall("testcase")) == 2
    assert not [child for child in suite.iter() if child.tag == "script"]


def test_it_begins_as_a_file_in_utf_8() -> None:
    text = junit_text(result(WORSE, worst=(worst("Größe"),)))
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name=')
    assert text.endswith("</testsuites>\n")
    assert "Größe" in text
