"""Models from anybody: damaged, without a tokenizer, or made to run code where they are loaded."""

import inspect
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import EntryNotFoundError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.transformer import Transformer
from transformers import PreTrainedModel
from transformers.models.auto import auto_factory

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.builtin.classifier.work import load_classifier
from quantdrift.builtin.cross_encoder.work import load_cross_encoder
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.models.files.named import ModelSource, resolve
from quantdrift.models.loading import loading
from quantdrift.models.schemas import CONFIG, TRANSFORMER
from quantdrift.models.vetting import TRANSFORMER_FILES, vet
from quantdrift.spec.grammar import parse
from support.candidate_samples import save_backbone, tiny
from support.classifier_samples import save_classifier
from support.rerank_samples import save_cross_encoder
from support.versus_samples import change, run_any, run_two, run_w4

CPU = torch.device("cpu")
DEEP = "[" * 100_000
DONE = "done"


class Command:
    """A command that a pickled checkpoint runs: it makes a folder."""

    def __init__(self, done: Path) -> None:
        self.done = done

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.done),)


def compared(folder: Path) -> None:
    run_two(folder.parent / "reference", folder, folder.parent / "run")


def classified(folder: Path) -> None:
    load_classifier(resolve(str(folder)), device=CPU)


def answered(folder: Path) -> None:
    pytest.importorskip("lm_eval")
    from quantdrift_lm_eval.model import QuantizedPairLM  # noqa: PLC0415 -- an optional extra

    QuantizedPairLM(str(folder), "W4-rtn", device="cpu", batch_size=4)


def causal(folder: Path) -> None:
    pytest.importorskip("lm_eval")
    from integration.quantdrift_lm_eval.lm_eval_samples_maker import save_model  # noqa: PLC0415 -- imports lm_eval

    save_model(folder)


FORMS: dict[str, tuple[Callable[[Path], None], Callable[[Path], object]]] = {
    "MODEL@SCHEME": (run_w4, lambda to: tiny().save_pretrained(str(to))),
    "A vs B": (compared, lambda to: tiny().save_pretrained(str(to))),
    "A vs a transformer alone": (compared, save_backbone),
    "cross-encoder": (lambda folder: load_cross_encoder(resolve(str(folder)), device=CPU), save_cross_encoder),
    "classifier": (classified, save_classifier),
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


@pytest.fixture
def evil(honest: Path, tmp_path: Path) -> Path:
    """A plain model in a folder, to be changed."""
    return shutil.copytree(honest / "MODEL@SCHEME", tmp_path / "evil")


def refused(form: str, folder: Path, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said) as caught:
        FORMS[form][0](folder)
    assert str(caught.value).isprintable()
    assert not (folder.parent / DONE).exists()


def code(folder: Path) -> str:
    return f"import os\nos.mkdir({str(folder.parent / DONE)!r})\nclass Own: ...\n"


def test_a_model_as_it_was_made_is_taken_and_may_say_what_is_harmless(form: str, folder: Path) -> None:
    if (folder / "sentence_bert_config.json").is_file():
        model = {"attn_implementation": "eager", "dtype": "bfloat16"}
        change(folder / "sentence_bert_config.json", model_args=model, config_args={"use_cache": False})
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
    classes = {"AutoConfig": "own.Own", "AutoModel": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    classes |= {f"AutoModelFor{kind}": "own.Own" for kind in ("CausalLM", "SequenceClassification")}
    change(folder / "config.json", auto_map=classes, model_type="own")
    change(folder / "tokenizer_config.json", auto_map=classes, tokenizer_class="Own")
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
    "code of its own": (own_code, "cannot be loaded|tokenizer_class: .* got Own"),
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
    transformer = modules[0]["type"]
    modules[-1]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "own.py").write_text(code(folder))
    refused(form, folder, f"names the class {kind}")
    modules[-1] = {**modules[-1], "type": transformer, "path": "../reference"}
    (folder / "modules.json").write_text(json.dumps(modules))
    refused(form, folder, "leads out of its folder")


def test_settings_of_a_hub_model_are_looked_at(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(UnsupportedError, match="code that comes"):
        vet(source)
    (tmp_path / "hub" / "config.json").unlink()
    (tmp_path / "hub" / "modules.json").write_text(json.dumps([{"path": "", "type": "own.Own"}]))
    with pytest.raises(UnsupportedError, match=r"names the class own\.Own"):
        vet(source)
    vet(source, trusted=True)


# --- what a loader reads from a folder: every key is allowed by name, or refused ------------------


def keys_taken(function: Any, pattern: str) -> set[str]:
    return set(re.findall(pattern, inspect.getsource(function)))


def arguments() -> dict[str, set[str]]:
    """Find the arguments of transformers' loaders in their source, by the name that a folder has for them."""
    config_class = transformers.PretrainedConfig
    pops = r'kwargs\.(?:pop|get)\(\s*"(\w+)"'
    model = keys_taken(PreTrainedModel.from_pretrained.__func__, pops) | keys_taken(
        auto_factory._BaseAutoModelClass.from_pretrained.__func__, pops
    )
    assert {"weights_only", "use_safetensors", "variant", "allow_all_kernels", "gguf_file", "adapter_kwargs"} <= {
        *model,
        *inspect.signature(PreTrainedModel.from_pretrained).parameters,
    }
    model |= set(inspect.signature(PreTrainedModel.from_pretrained).parameters) - {"model_args", "kwargs"}
    config = keys_taken(transformers.AutoConfig.from_pretrained.__func__, pops)
    config |= keys_taken(config_class._get_config_dict.__func__, pops) | {"quantization_config", "transformers_weights"}
    tokenizer = keys_taken(transformers.AutoTokenizer.from_pretrained.__func__, pops)
    return {"model_args": model, "config_args": config, "tokenizer_args": tokenizer}


NAMES = {
    "model_args": ("model_args", "model_kwargs"),
    "config_args": ("config_args", "config_kwargs"),
    "tokenizer_args": ("tokenizer_args", "processor_kwargs"),
}

HARMLESS = {
    "model_args": {"attn_implementation", "dtype", "torch_dtype", "trust_remote_code"},
    "config_args": {"trust_remote_code"},
    "tokenizer_args": {"use_fast", "trust_remote_code"},
}
"""Keys of transformers' loaders that a file may give; the type is overruled, and code is never trusted by a file."""


@pytest.mark.parametrize("file", TRANSFORMER_FILES)
def test_what_a_folder_hands_to_transformers_is_on_a_list(evil: Path, file: str) -> None:
    (evil / "sentence_bert_config.json").unlink()
    source = resolve(str(evil))
    taken = set(inspect.signature(Transformer.__init__).parameters) - {"self", "model_name_or_path"}
    others = {"backend", "tokenizer_name_or_path", "query_length", "document_length", "query_expansion"}
    assert taken <= {*TRANSFORMER.model_fields} | others  # a new one is decided here first
    cases: list[tuple[str, Any, bool]] = [(key, "x", False) for key in others]
    for name, keys in arguments().items() if file == TRANSFORMER_FILES[0] else ():  # one schema is for all files
        for argument in NAMES[name]:
            cases += [(f"{argument}.{key}", {argument: {key: False}}, key in HARMLESS[name]) for key in keys]
    for said, content, harmless in cases:
        (evil / file).write_text(json.dumps(content if isinstance(content, dict) else {said: content}))
        with nullcontext() if harmless else pytest.raises(UnsupportedError, match=f"sets {said}, which no file"):
            vet(source)
        vet(source, trusted=True)


def test_entries_of_a_config_that_change_how_files_are_read_are_refused(evil: Path) -> None:
    acted_on = keys_taken(PreTrainedModel.from_pretrained.__func__, r'getattr\(config, "(\w+)"')
    assert acted_on == {"transformers_weights", "fusion_config"} <= CONFIG.model_fields.keys()
    for key in acted_on:
        change(evil / "config.json", **{**dict.fromkeys(acted_on), key: "other.safetensors"})
        with pytest.raises(UnsupportedError, match=f"config.json of .* cannot be used: {key}"):
            vet(resolve(str(evil)))


READ = (
    *("pytorch_model.bin", "pytorch_model.x.bin", "adapter_model.bin", "training_args.bin"),
    *("1_Pooling/pytorch_model.bin", "tokenizer.pkl", "model.pt"),
)
WISHES = {"weights_only": False, "use_safetensors": False, "dtype": "auto"}


@pytest.mark.parametrize("wish", ["model_args", "model_kwargs", "variant"])
def test_no_pickle_is_run_wherever_it_lies(form: str, folder: Path, wish: str) -> None:
    """The poisoned folder of a report: settings beside good weights that had transformers read a pickle."""
    for file in READ:
        (folder / file).parent.mkdir(exist_ok=True)
        with (folder / file).open("wb") as out:
            pickle.dump(Command(folder.parent / DONE), out, protocol=2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key not in {"dtype", "torch_dtype"}})
    )
    wishes = {"model_args": {**WISHES, "variant": "x"}} if wish == "variant" else {wish: WISHES}
    for file in TRANSFORMER_FILES:
        (folder / file).write_text(json.dumps({"max_seq_length": 48, **wishes}))
    with suppress(UnsupportedError):
        FORMS[form][0](folder)
    assert not (folder.parent / DONE).exists()


def test_a_loader_reads_no_pickles_whatever_it_is_told(honest: Path, tmp_path: Path) -> None:
    """The function that reads the weights has the last word, for keys that are on no list yet."""
    seen: list[dict[str, Any]] = []
    original = PreTrainedModel.__dict__["from_pretrained"]
    with pytest.MonkeyPatch.context() as patch:

        def watched(cls: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs)
            return original.__func__(cls, *args, **kwargs)

        patch.setattr(PreTrainedModel, "from_pretrained", classmethod(watched))
        with loading(resolve(str(honest / "MODEL@SCHEME"))):
            SentenceTransformer(str(honest / "MODEL@SCHEME"), model_kwargs={"weights_only": False}, device="cpu")
    assert seen
    decided = {"weights_only": True, "use_safetensors": True, "trust_remote_code": False, "allow_all_kernels": False}
    assert all(decided.items() <= kwargs.items() for kwargs in seen)
    assert PreTrainedModel.__dict__["from_pretrained"] is original


@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter_is_refused(alone: bool, form: str, folder: Path) -> None:
    """Beside a model, as sentence-transformers writes it, or alone, as peft does."""
    base = {"base_model_name_or_path": str(folder.parent / "reference"), "peft_type": "LORA"}
    if alone:
        shutil.rmtree(folder)
        folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(base))
    refused(form, folder, r"evil holds an adapter .*merge it into its base first .*merge_and_unload\(\)")


def test_a_tokenizer_whose_pattern_gives_up_is_told_in_one_line(evil: Path, tmp_path: Path) -> None:
    rules = json.loads((evil / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(a+)+!"}, "behavior": "Isolated", "invert": False}
    change(
        evil / "tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [split, rules["pre_tokenizer"]]}
    )
    data = RetrievalDataset.of({"q": "heat"}, {"d": "wing", "e": "a" * 60}, {"q": {"d": 1}}, name="long words")
    with pytest.raises(DataError, match="retry-limit"):
        run_any(parse(f"{evil}@W4-rtn"), tmp_path / "run", dataset=data)
