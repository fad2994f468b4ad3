"""A tiny sentence encoder, and codes of every kind for it; nothing is downloaded."""

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from quantdrift.asking.saving import save_candidate
from quantdrift.base.progress import Silent
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.candidate.quantized import QuantizedWeight, spread
from quantdrift.models.files.named import ModelSource
from quantdrift.models.layers import modules_of
from quantdrift.spec.grammar import parse, parse_scheme

WORDS = ("wing", "drag", "lift", "flow", "heat", "boundary", "layer", "shock", "wave", "the", "of")
TEXTS = ["the drag of the wing", "heat", "shock wave of the boundary layer flow " * 4, "lift flow"]
HIDDEN, WIDTH = 192, 320  # a second group of 128 is half a group, a third one of 320 as well


def tokenizer(words: Sequence[str] = WORDS, longest: int = 48, **options: Any) -> PreTrainedTokenizerFast:
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    vocabulary = {word: number for number, word in enumerate((*special, *words))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token")
    given = dict(zip(names, special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=core, **given, model_max_length=longest, **options)


def bert(**sizes: Any) -> BertConfig:
    """Settings of a BERT of two layers for the words."""
    return BertConfig(vocab_size=len(WORDS) + 4, num_hidden_layers=2, max_position_embeddings=48, **sizes)


def save_backbone(folder: Path, model: Any = None) -> None:
    """A BERT of two layers with random weights, or another model, and the tokenizer.

    The weights are numbers that bfloat16 has, too.
    """
    torch.manual_seed(0)
    config = bert(hidden_size=HIDDEN, num_attention_heads=4, intermediate_size=WIDTH, initializer_range=0.1)
    (model or BertModel(config)).bfloat16().float().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def encoder(folder: Path, model: Any = None, **options: Any) -> SentenceTransformer:
    """A SentenceTransformer around a backbone that is saved in a folder."""
    save_backbone(folder, model)
    options = {"prompts": {"query": "wing flow ", "document": ""}, **options}
    return SentenceTransformer(str(folder), device="cpu", **options).eval()


@cache
def tiny() -> SentenceTransformer:
    """The encoder that most tests take; it is left as it was found."""
    with TemporaryDirectory() as folder:
        return encoder(Path(folder))


def rich(weight: Tensor, *, bits: int, group_size: int | None, seed: int = 0) -> QuantizedWeight:
    """Codes with all that a quantizer may use: order, input scaling, zero points with fractions."""
    rng = torch.Generator().manual_seed(seed)
    width = weight.shape[1]
    order = torch.randperm(width, generator=rng)
    scaling = 0.5 + torch.rand(width, generator=rng)
    wanted = (weight.detach().float() * scaling)[:, order]
    size = group_size or width
    low, high = (
        torch.stack([f(part, dim=1) for part in wanted.split(size, dim=1)], dim=1) for f in (torch.amin, torch.amax)
    )
    scale = (high - low) / (2**bits - 1)
    zero = -low / scale - 2 ** (bits - 1)
    codes = torch.round(wanted / spread(scale, width, group_size) + spread(zero, width, group_size))
    codes = codes.clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)
    codes = codes[:, torch.argsort(order)]
    more: Any = {"zero_point": zero, "permutation": order, "input_scaling": scaling}
    return QuantizedWeight(codes=codes, scale=scale, bits=bits, group_size=group_size, **more)


def text(seed: int, n_words: int = 9) -> str:
    """Words drawn from the vocabulary, the same ones for the same seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


def quantized(model: Any, scheme: str) -> AbstractContextManager[None]:
    """Inside, a stock model is quantized in place by hand."""
    return QuantizedPair(modules_of(model), parse_scheme(scheme)).candidate()


def candidate(scheme: str, make: Any = quantize_rtn, model: Any = None) -> QuantizedPair:
    """A pair of a model, the tiny one if not given; its codes by `quantize_rtn` or `rich`."""
    source = ModelSource(name="tiny", canonical="tiny", kind="local", location="tiny")
    encoder = SentenceEncoder(model=model or tiny(), source=source, similarity="cosine")
    pair = QuantizedPair(encoder.modules, scheme, encoder=encoder)
    bits = int(pair.scheme.weight_bits)
    quantize = partial(make, bits=bits, group_size=pair.scheme.group_size)
    pair._methods[bits] = SimpleNamespace(  # type: ignore[assignment]  # as a method
        needs_moments=False, quantize=lambda weight, _: quantize(weight), describe=dict
    )
    return pair


def save(pair: QuantizedPair, out: Path) -> dict[str, Any]:
    return save_candidate(parse(f"tiny@{pair.scheme}"), pair, out, progress=Silent())


def embed(model: Any, texts: list[str] | None = None) -> Tensor:
    """Embeddings of documents, on the CPU."""
    given = TEXTS if texts is None else texts
    embeddings: Tensor = model.encode_document(given, convert_to_tensor=True, show_progress_bar=False)
    return embeddings.cpu()


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest relative distance of two embeddings of one text."""
    return float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max())
