"""Tuning: what comes back, what is kept, when it is undone, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.builtin.tuned import descent
from quantdrift.builtin.tuned import work as stage
from quantdrift.builtin.tuned.problem import (
    DOCUMENTS,
    Inside,
    Side,
    change,
    change_inside,
    pieces,
    problem_of,
    seen_inside,
    sentences,
)
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.candidate.refusals import refuse_settings
from quantdrift.models.files.named import ModelSource
from quantdrift.models.inputs import text_inputs
from quantdrift.models.weights import weights_fingerprint
from quantdrift.runs.words import candidate_lines
from quantdrift.scoring.similarity import Similarity
from quantdrift.spec.grammar import parse_scheme
from support.candidate_samples import WORDS, tiny

TEXTS = [
    f"{WORDS[a]} of the {WORDS[b]} {WORDS[c]}. The {WORDS[c]} {WORDS[b]} of the {WORDS[a]}!"
    for a in range(5) for b in range(3, 7) for c in range(2, 4)
]  # fmt: skip
FEW = TEXTS[:20]


def encoder() -> SentenceEncoder:
    source = ModelSource(name="tiny", canonical="tiny", kind="local", location="tiny")
    return SentenceEncoder(model=tiny(), source=source, similarity=Similarity.COSINE)


def prepared(scheme: str, root: Path | None = None, texts: list[str] = TEXTS) -> QuantizedPair:
    model = encoder()
    pair = QuantizedPair([model.module], scheme, name="tiny", encoder=model)
    pair.calibrate([text_inputs(texts)], 16, source="corpus", root=root, progress=Silent())
    return pair


def digest(pair: QuantizedPair) -> str:
    with pair.candidate():
        return weights_fingerprint(pair.modules)


def tuned(pair: QuantizedPair) -> dict[str, Any]:
    record: dict[str, Any] = pair.describe()["tuned"]
    return record


def codes(pair: QuantizedPair) -> list[Tensor]:
    return [layer.quantized.codes for layer in pair.candidate_layers() if layer.quantized is not None]


def test_it_comes_nearer_to_the_reference_with_the_same_codes_and_is_undone_bit_for_bit() -> None:
    before = weights_fingerprint([tiny()])
    plain, pair = prepared("W3-g64"), prepared("W3-g64+tuned=8")
    assert weights_fingerprint([tiny()]) == before
    assert all(torch.equal(*both) for both in zip(codes(plain), codes(pair), strict=True))
    record = tuned(pair)
    assert 0 < record["loss_after"] < record["loss_before"]
    assert record["losses"][str(record["best_step"])] == record["loss_after"]
    others = [f"{first} of the {second} shock wave. The lift." for first in WORDS[:5] for second in WORDS[5:7]]
    exact = pair.encoder.encode(others, "document", 10)
    apart = {}
    for name, each in (("plain", plain), ("tuned", pair)):
        with each.candidate():
            apart[name] = np.square(each.encoder.encode(others, "document", 10) - exact).sum()
    assert apart["tuned"] < 0.95 * apart["plain"]
    assert weights_fingerprint([tiny()]) == before
    assert all(not parameter.grad_fn and parameter.grad is None for parameter in tiny().parameters())


@pytest.mark.slow
def test_a_long_run_moves_codes_too_within_their_width(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = tuned(prepared("W3-g64+tuned=24", texts=FEW))
    assert fixed["codes"] == fixed["codes_moved"] == 0
    monkeypatch.setattr(descent, "FEWEST", 24)
    monkeypatch.setattr(descent, "CODE_RATE", 0.02)
    plain, pair = prepared("W3-g64", texts=FEW), prepared("W3-g64+tuned=24", texts=FEW)
    moved = sum(int((a != b).sum()) for a, b in zip(codes(plain), codes(pair), strict=True))
    record = tuned(pair)
    assert 0 < moved == record["codes_moved"] < record["codes"] == sum(made.numel() for made in codes(plain))
    assert max(int(made.abs().max()) for made in codes(pair)) <= 3
    assert record["loss_after"] < fixed["loss_after"]
    assert any(
        f"{moved:,} of {record['codes']:,} codes" in line for line in candidate_lines({"quantization": pair.describe()})
    )


def test_inputs_of_layers_are_seen_without_padding_and_those_that_layers_share_once() -> None:
    model, pair = encoder(), prepared("W4-g64")
    with seen_inside(pair.modules, pair.layers) as seen:
        model.encode([TEXTS[0], WORDS[0]], "document", 2)
    names = [pair.layers[number].name.split(".layer.")[-1] for number in seen]
    assert names[:4] == ["0.attention.self.query", "0.attention.output.dense", "0.intermediate.dense", "0.output.dense"]
    tokens = sum(len(model.model.tokenizer(text)["input_ids"]) for text in (TEXTS[0], WORDS[0]))
    assert {len(rows) for number in list(seen)[:4] for rows in seen[number]} == {tokens}


def test_the_change_inside_is_relative_and_the_mean_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = torch.tensor([[3.0, 4.0]]), torch.ones(2, 2)
    exact = [{0: [one], 5: [two]}]

    def of(*found: list[Inside]) -> float:
        return float(change_inside(found, [exact] * len(found)))

    assert of([{0: [2 * one], 5: [two]}]) == pytest.approx(0.5)
    assert of([{0: [2 * one], 5: [two]}], [{0: [one], 5: [0 * two]}]) == pytest.approx(1)  # of two sides
    parts = [[{0: [2 * one], 5: [two]}, {0: [one]}]]
    assert float(change_inside(parts, [[*exact, {0: [one]}]])) == pytest.approx(0.25)
    assert of([{0: [2 * one], 5: [two[:1]]}]) == pytest.approx(0.5)  # routed elsewhere
    both = digest(prepared("W4-g64+tuned=2"))
    monkeypatch.setattr("quantdrift.builtin.tuned.problem.change_inside", lambda *_: 0.0)
    assert digest(prepared("W4-g64+tuned=2")) != both  # it is in the loss


def test_parts_of_about_the_same_length_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(role="document", items=["long" * 9, "a", ("b", "c" * 20), "long" * 8, "bb"])
    assert [part.tolist() for part in side.parts(np.arange(5), 2)] == [[1, 4, 2], [3, 0]]
    assert [len(part) for part in side.parts(np.arange(2), 4)] == [1, 1]
    seen, encode = list[int](), SentenceEncoder.encode
    monkeypatch.setattr(
        SentenceEncoder, "encode", lambda self, items, *more: seen.append(len(items)) or encode(self, items, *more)
    )
    whole = tuned(prepared("W4-g64+tuned=2"))
    assert max(seen) < DOCUMENTS
    monkeypatch.setattr(stage, "_PARTS", 1)
    at_once = tuned(prepared("W4-g64+tuned=2"))
    assert DOCUMENTS in seen
    assert at_once["losses"] == pytest.approx(whole["losses"], rel=1e-3)


def test_the_candidate_is_what_codes_scales_biases_and_norms_stand_for() -> None:
    pair = prepared("W4-g64-hqq+tuned=2")
    made = {layer.name: layer.quantized for layer in pair.candidate_layers()}
    start = {name: value.clone() for name, value in pair.modules[0].state_dict().items()}
    with pair.candidate():
        moved = pair.modules[0].state_dict()
        for name, quantized in made.items():
            assert quantized is not None
            assert torch.equal(moved[f"{name}.weight"], quantized.dequantize(torch.float32))
        changed = {name for name, value in moved.items() if not torch.equal(value, start[name])}
    ends = {
        name.removeprefix("0.model.").removeprefix("0.auto_model.") for name in changed - {f"{n}.weight" for n in made}
    }
    assert {"embeddings.LayerNorm.bias", "encoder.layer.1.output.LayerNorm.weight"} <= ends
    assert "encoder.layer.0.attention.self.query.bias" in ends
    assert not any("embeddings.weight" in name or "_embeddings." in name for name in ends)
    assert not any("pooler" in name for name in ends)  # no output depends on it


def test_a_seed_gives_the_same_numbers_and_another_one_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (digest(prepared(f"W4-g64+tuned=2{seed}")) for seed in ("", "", "+seed=1"))
    assert first == again != other
    kept = [prepared("W4-g64+tuned=2", tmp_path) for _ in range(2)]
    assert [tuned(pair)["kept_from_before"] for pair in kept] == [False, True]
    assert {digest(pair) for pair in kept} == {first}
    assert not tuned(prepared("W4-g64+tuned=2+query", tmp_path))["kept_from_before"]
    keys, model = [kept[0].encoder.key("query")], kept[0].encoder.model
    for part, name in ((model, "truncate_dim"), (model[0], "module_output_name")):
        with monkeypatch.context() as patched:
            patched.setattr(part, name, 4)
            keys.append(kept[0].encoder.key("query"))
    assert len({str(key) for key in keys}) == 3
    monkeypatch.setattr(SentenceEncoder, "key", lambda _, role: {"prompt of": role})
    assert not tuned(prepared("W4-g64+tuned=2", tmp_path))["kept_from_before"]


@pytest.mark.slow
def test_tuning_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepared("W4-g64+tuned=16", texts=FEW)
    write, kept = descent.write_state, list[int]()

    def interrupted(path: Path, state: descent.State) -> None:
        write(path, state)
        kept.append(state.step)
        if len(kept) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("quantdrift.builtin.tuned.work.write_state", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepared("W4-g64+tuned=16", tmp_path, FEW)
    assert weights_fingerprint([tiny()]) == whole.fingerprint
    seen: list[int] = []
    monkeypatch.setattr("quantdrift.builtin.tuned.work.write_state", lambda _, state: seen.append(state.step))
    resumed = prepared("W4-g64+tuned=16", tmp_path, FEW)
    assert seen[0] > kept[-1]
    assert (digest(resumed), tuned(resumed)["losses"]) == (digest(whole), tuned(whole)["losses"])


def test_what_gets_worse_is_undone_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent, "SCALE_RATE", 0.5)
    pair = prepared("W4-g64+tuned=32")
    assert digest(pair) == digest(prepared("W4-g64"))
    record = tuned(pair)
    assert (record["best_step"], record["loss_after"]) == (0, record["loss_before"])
    assert record["steps_taken"] < 32  # it is not watched getting worse to the end
    assert "changes nothing" in pair.notes[-1]
    lines = [line for line in candidate_lines({"quantization": pair.describe()}) if "undone" in line]
    assert len(lines) == 1


def test_where_nothing_was_rounded_nothing_changes() -> None:
    """Weights that are on the grid already: the loss is 0, and so is its gradient."""
    model = encoder()
    whole = {name: value.clone() for name, value in model.module.state_dict().items()}
    try:
        with prepared("W4-g64").candidate():
            on_grid = {name: value.clone() for name, value in model.module.state_dict().items()}
        model.module.load_state_dict(on_grid)
        pair = prepared("W4-g64+tuned=4")
        assert tuned(pair)["loss_before"] < 1e-9
        with pair.candidate():
            moved = model.module.state_dict()
            assert max(float((moved[name] - on_grid[name]).abs().max()) for name in moved) < 1e-5
    finally:
        model.module.load_state_dict(whole)


def test_scales_of_a_number_format_stay_on_their_grid() -> None:
    plain, pair = prepared("W4-mxfp4"), prepared("W4-mxfp4+tuned=4")
    assert tuned(pair)["scales"] == 0
    for before, after in zip(plain.candidate_layers(), pair.candidate_layers(), strict=True):
        assert before.quantized is not None
        assert after.quantized is not None
        assert torch.equal(before.quantized.scale, after.quantized.scale)
    assert tuned(pair)["loss_after"] < tuned(pair)["loss_before"]


def test_with_the_query_side_alone_documents_stay_at_the_reference() -> None:
    problem = problem_of(encoder(), [text_inputs(TEXTS)], query_only=True, seed=0)
    assert [side.role for side in problem.sides] == ["query"]
    record = tuned(prepared("W3-g64+tuned=4+query"))
    assert record["loss_after"] < record["loss_before"]


def test_no_document_of_a_step_is_held_out_nor_one_of_its_sentences() -> None:
    problem = problem_of(encoder(), [text_inputs(TEXTS)], query_only=False, seed=3)
    ((held, held_documents),) = problem.held_out
    assert len(held_documents) == len(TEXTS) // 8
    asked, documents = problem.sides
    for step in range(20):
        rows, shown = problem.batch(np.random.default_rng(step))
        assert not {*held.tolist()} & {*rows.tolist()}
        assert not {*held_documents.tolist()} & {*shown.tolist()}
        assert len(shown) == len(rows) == DOCUMENTS
        assert not any(asked.items[row] in TEXTS[other] for row in rows for other in held_documents)
        assert [documents.items[row] for row in shown] == [TEXTS[row] for row in shown]
    alone = problem_of(encoder(), [text_inputs(TEXTS)], query_only=True, seed=3)
    assert [len(rows) for rows in alone.batch(np.random.default_rng(0))] == [2 * DOCUMENTS]


def test_the_loss_is_the_relative_square_of_the_change_and_lengths_count_where_they_do() -> None:
    exact = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    longer, turned = 2 * exact, exact.flip(1)
    assert float(change([longer], [exact], unit=False)) == pytest.approx(1)
    assert float(change([longer], [exact], unit=True)) == pytest.approx(0)
    assert float(change([turned, exact], [exact, exact], unit=False)) == pytest.approx((1 + 1 + 4 + 4) / 29)
    apart = (0.6 - 0.8) ** 2 * 2 + 1 + 1
    assert float(change([turned, longer], [exact, exact], unit=True)) == pytest.approx(apart / 2)
    nothing = torch.zeros(2, 2)
    assert float(change([nothing], [nothing], unit=True)) == 0


def test_sentences_and_pieces() -> None:
    assert sentences("Is it so? The ferry leaves twice a day! no.\nA line of its own here") == [
        "The ferry leaves twice a day!", "A line of its own here",
    ]  # fmt: skip
    assert (sentences(""), sentences("short")) == (["."], ["short"])
    assert sentences("渡り船は一日に二回、朝と夕方に島へ向けて出ます。次の便は明日の朝になりますのでご注意ください。")[
        1
    ].startswith("次の")
    words = [f"word{number}" for number in range(100)]
    assert [len(piece.split()) for piece in pieces(" ".join(words))] == [24, 24, 24, 24, 4]
    assert " ".join(pieces(" ".join(words))).split() == words
    assert ([len(piece) for piece in pieces("x" * 450)], pieces(" ")) == ([200, 200, 50], ["."])


def test_what_cannot_be_tuned_is_refused_in_one_line() -> None:
    for scheme, why in {
        "W16A8+tuned": "none are rounded",
        "fp+tuned": "none are rounded",
        "W4A8+tuned": "no gradient through rounded inputs",
    }.items():
        with pytest.raises(UnsupportedError, match=why) as told:
            refuse_settings(parse_scheme(scheme))
        assert "\n" not in str(told.value)
    with pytest.raises(UnsupportedError, match="loads itself"):
        QuantizedPair([torch.nn.Linear(4, 4)], "W4+tuned")
    with pytest.raises(DataError, match="got 1"):
        prepared("W4+tuned=1", texts=TEXTS[:1])
    with pytest.raises(DataError, match="got 1"):  # of another tower
        problem_of(encoder(), [text_inputs(TEXTS), text_inputs(TEXTS[:1])], query_only=False, seed=0)
    pair, other = prepared("W4-g64+tuned=1"), QuantizedPair([tiny()], "W4-g64+tuned=1", encoder=encoder())
    assert pair.made is not None
    other.take(pair.made.layers)
    with pytest.raises(UnsupportedError, match="tuned in another process"), other.candidate():
        pass


def test_the_word_alone_means_the_usual_number_of_steps() -> None:
    short, long = parse_scheme("W4+tuned"), parse_scheme("W4+tuned=36")
    assert (short, str(short)) == (long, "W4-g128-rtn+tuned=36")
