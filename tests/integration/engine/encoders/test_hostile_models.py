"""Models from anybody: damaged, without a tokenizer, or made to run code where they are loaded."""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import huggingface_hub
import torch
from huggingface_hub.errors import EntryNotFoundError

from quantdrift.engine.encoders.classifier import load_classifier
from quantdrift.engine.encoders.cross_encoder import load_cross_encoder
from quantdrift.engine.encoders.vetting import vet
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import UnsupportedError
from quantdrift.models.named import ModelSource, resolve
from quantdrift.progress import Silent
from quantdrift.spec import parse
from support.candidate_samples import save_backbone, tiny
from support.classifier_samples import TEXT_MODELS, saved
from support.classifier_samples import tokenizer as class_tokenizer
from support.rerank_samples import save_cross_encoder
from support.versus_samples import DATASET, SETTINGS, run_two

CPU = torch.device("cpu")
DEEP = "[" * 100_000
DONE = "done"


class Command:
    """What a pickled checkpoint runs: the place of a file that it leaves."""

    def __init__(self, done: Path) -> None:
        self.done = done

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.done),)


def measured(folder: Path) -> None:
    run_pair(
        parse(f"{folder}@W4-rtn"),
        DATASET,
        out=folder.parent / "run",
        settings=SETTINGS,
        store=EmbeddingStore(None),
        progress=Silent(),
        device="cpu",
    )


def compared(folder: Path) -> None:
    run_two(folder.parent / "reference", folder, folder.parent / "run")


def reranked(folder: Path) -> None:
    load_cross_encoder(resolve(str(folder)), device=CPU)


def classified(folder: Path) -> None:
    load_classifier(resolve(str(folder)), device=CPU)


def answered(folder: Path) -> None:
    pytest.importorskip("lm_eval")
    from quantdrift_lm_eval.model import QuantizedPairLM  # noqa: PLC0415 -- an optional extra

    QuantizedPairLM(str(folder), "W4-rtn", device="cpu", batch_size=4)


def causal(folder: Path) -> None:
    pytest.importorskip("lm_eval")
    from support.lm_eval_samples_maker import save_model  # noqa: PLC0415 -- imports lm_eval

    save_model(folder)


FORMS: dict[str, tuple[Callable[[Path], None], Callable[[Path], object]]] = {
    "MODEL@SCHEME": (measured, lambda to: tiny().save_pretrained(str(to))),
    "A vs B": (compared, lambda to: tiny().save_pretrained(str(to))),
    "A vs a transformer alone": (compared, save_backbone),
    "cross-encoder": (reranked, save_cross_encoder),
    "classifier": (classified, lambda to: saved(to, TEXT_MODELS["bert"][0], class_tokenizer())),
    "lm-eval": (answered, causal),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("honest")
    for name, (_, make) in FORMS.items():
        make(root / name)
    return root


@pytest.fixture(params=list(FORMS))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(form: str, honest: Path, tmp_path: Path) -> Path:
    if not (honest / form).is_dir():
        pytest.skip("lm_eval is not installed")
    shutil.copytree(honest / "MODEL@SCHEME", tmp_path / "reference")
    shutil.copytree(honest / form, tmp_path / "evil")
    return tmp_path / "evil"


@pytest.fixture(autouse=True)
def no_questions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers asks at the terminal whether a model's own code may run; nobody says yes."""
    asked: list[str] = []

    def answer(text: str = "") -> str:
        asked.append(text)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    yield
    assert not asked


def refused(form: str, folder: Path, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said) as caught:
        FORMS[form][0](folder)
    assert str(caught.value).isprintable()
    assert not (folder.parent / DONE).exists()


def change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def code(folder: Path) -> str:
    return f"import os\nos.mkdir({str(folder.parent / DONE)!r})\nclass Own: ...\n"


def test_a_model_as_it_was_made_is_taken(form: str, folder: Path) -> None:
    FORMS[form][0](folder)


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 7)


def petabytes(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes((1 << 62).to_bytes(8, "little") + weights.read_bytes()[8:])


def index(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Command(folder.parent / DONE), file, protocol=2)


def own_code(folder: Path) -> None:
    own = {"AutoConfig": "own.Own", "AutoModel": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    own |= {f"AutoModelFor{kind}": "own.Own" for kind in ("CausalLM", "SequenceClassification")}
    change(folder / "config.json", auto_map=own, model_type="own")
    change(folder / "tokenizer_config.json", auto_map=own, tokenizer_class="Own")
    (folder / "own.py").write_text(code(folder))


def settings(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", **values)


DAMAGED, INDEX = r"model\.safetensors is damaged or cut short", r"index\.json (is damaged|names the file)"
HQQ = {"quant_method": "hqq"}
EVIL: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut weights": (cut, DAMAGED),
    "a head of petabytes": (petabytes, DAMAGED),
    "a deep index": (lambda to: index(to, DEEP), INDEX),
    "an index of numbers": (lambda to: index(to, '{"weight_map": {"a": 5}}'), INDEX),
    "an index to elsewhere": (lambda to: index(to, '{"weight_map": {"a": "../x.safetensors"}}'), INDEX),
    "deep settings": (lambda to: (to / "config.json").write_text(DEEP) and None, r"config\.json cannot be read"),
    "layers without end": (settings(num_hidden_layers=10**9), "asks for 1,000,000,000 as num_hidden_layers"),
    "labels without end": (settings(num_labels=10**9), "asks for 1,000,000,000 as num_labels"),
    "pickled weights": (pickled, "its weights are pickled Python|cannot be loaded|not pickled ones"),
    "a kernel of the hub": (settings(attn_implementation="some/kernel"), "attn_implementation.* code that comes with"),
    "code of its own": (own_code, "cannot be loaded"),
    "hqq": (settings(quantization_config=HQQ), "hqq|no packed linear layer|quantized already"),
    "hqq inside": (settings(text_config={"quantization_config": HQQ}), "hqq|no packed linear layer|quantized already"),
}


SHORT = ("cut weights", "pickled weights", "code of its own", "hqq inside")


@pytest.mark.parametrize("evil", EVIL)
def test_what_is_damaged_or_would_run_code_is_refused_in_one_line(form: str, folder: Path, evil: str) -> None:
    if form != "A vs B" and evil not in SHORT:
        return  # all forms look at a model in the same way
    make, said = EVIL[evil]
    make(folder)
    refused(form, folder, said)


def test_a_model_without_its_tokenizer_is_refused(form: str, folder: Path) -> None:
    if form == "A vs a transformer alone":
        return  # the reference's is taken
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (folder / file).unlink(missing_ok=True)
    refused(form, folder, "tokenizer files are missing|cannot be loaded")


@pytest.mark.parametrize("kind", ["own.Own", "sentence_transformers.base.model.pickle"])
def test_modules_are_classes_of_sentence_transformers(form: str, folder: Path, kind: str) -> None:
    if not (folder / "modules.json").is_file():
        pytest.skip("it has none")
    modules = json.loads((folder / "modules.json").read_text())
    own = modules[0]["type"]
    modules[-1]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "own.py").write_text(code(folder))
    refused(form, folder, f"names the class {kind}")
    modules[-1] = {**modules[-1], "type": own, "path": "../reference"}
    (folder / "modules.json").write_text(json.dumps(modules))
    refused(form, folder, "leads out of its folder")


def test_the_settings_of_a_hub_model_are_looked_at_as_far_as_it_answers(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repo: str, file: str, **options: Any) -> str:
        if not (tmp_path / "hub" / file).is_file():
            raise EntryNotFoundError(file)
        return str(tmp_path / "hub" / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    source = ModelSource(name="a/b", canonical="a/b", kind="hub", location="a/b")
    vet(source)  # there is nothing
    shutil.copytree(honest / "MODEL@SCHEME", tmp_path / "hub")
    vet(source)
    change(tmp_path / "hub" / "config.json", attn_implementation="some/kernel")
    with pytest.raises(UnsupportedError, match="code that comes with a model"):
        vet(source)
    (tmp_path / "hub" / "config.json").unlink()
    (tmp_path / "hub" / "modules.json").write_text(json.dumps([{"path": "", "type": "own.Own"}]))
    with pytest.raises(UnsupportedError, match=r"names the class own\.Own"):
        vet(source)
    vet(source, trusted=True)
