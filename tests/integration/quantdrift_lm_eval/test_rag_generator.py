"""`quantdrift rag` with lm-eval's own hf model: what it answers, what a kill leaves, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from integration.quantdrift_lm_eval.lm_eval_samples_maker import save_model
from quantdrift_rag.answers import RagRecord
from quantdrift_rag.questions import Prompt
from support.command_line import cli
from support.rag_samples import PASSAGES, QUESTIONS, write_search, write_world

TOKENS = 6
SWAPPED = [[9, 5, 4, 3, 2, 1], [9, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 9]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rag")
    data = write_world(place)
    write_search(place / "W4", data, SWAPPED)
    save_model(place / "tiny")
    return place


def command(place: Path, out: Path, *more: object) -> list[str]:
    model = ("--model", "hf", "--model-args", f"pretrained={place / 'tiny'}", "--device", "cpu", "-q", "-o", out)
    words = ("rag", place / "W4", "--passages", 2, "--max-tokens", TOKENS, "--batch-size", 1, *model, *more)
    return [str(word) for word in words]


def continued(place: Path, prompt: str) -> str:
    """Let transformers continue the last tokens of a prompt, greedily, up to the end of the line."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place / "tiny")
    model = LlamaForCausalLM.from_pretrained(place / "tiny").eval()
    ids = tokenizer(prompt, return_tensors="pt").input_ids[:, -(256 - TOKENS) :]
    with torch.no_grad():
        said = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)
    return str(tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True)).partition("\n")[0].strip()


def test_answers_are_those_of_transformers_and_are_kept(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = cli(*command(world, tmp_path / "out", "--json"))
    assert code == 0, err
    record = RagRecord.read(tmp_path / "out" / "rag.json")
    assert json.loads(out)["n_questions"] == 3
    assert record.control is not None
    assert record.control.answers == [continued(world, Prompt(question).text) for question in QUESTIONS.values()]
    [candidate] = record.candidates
    for condition in (record.reference, candidate):
        for question, read, said in zip(record.questions, condition.passages or (), condition.answers, strict=True):
            assert said == continued(world, Prompt(question, tuple(PASSAGES[name] for name in read)).text)
    assert candidate.passages == [["d0", "d1"], ["d0", "d1"], ["d5", "d4"]]
    from lm_eval.models.huggingface import HFLM  # noqa: PLC0415 -- it takes seconds

    monkeypatch.setattr(HFLM, "generate_until", lambda *_, **__: pytest.fail("asked again"))
    assert cli(*command(world, tmp_path / "out", "--json"))[:2] == (0, out)
    assert json.loads(cli("rag", tmp_path / "out", "--json")[1]) == json.loads(out)


def test_prompts_that_are_cut_are_told(world: Path, tmp_path: Path) -> None:
    code, out, _ = cli(*command(world, tmp_path / "out", "--max-tokens", 160))
    assert code == 0
    assert "prompts are longer than the 96 tokens" in " ".join(out.split())


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("nope", "", "the generator nope cannot be loaded"),
        ("quantdrift", "pretrained=x,scheme=W4", "at full precision"),
        ("hf", "pretrained=./nowhere", "cannot be loaded"),
        ("hf", "", "pretrained=NAME"),
        ("hf", "pretrained=TINY,no_such_option=1", "cannot be loaded"),
        ("local-completions", "model=m,base_url=http://127.0.0.1:9/v1,auth_token=s3cret", "local-completions m"),
    ],
)
def test_a_generator_that_cannot_be_had_is_one_line_without_its_key(
    model: str, arguments: str, message: str, world: Path, tmp_path: Path
) -> None:
    given = arguments.replace("TINY", str(world / "tiny"))
    code, out, err = cli("rag", world / "W4", "--model", model, "--model-args", given, "-o", tmp_path / "out", "-q")
    assert (code, out) == (2, "")
    assert message in err
    assert err.strip().count("\n") == 0
    assert "s3cret" not in err
    assert not (tmp_path / "out" / "rag.json").exists()
