"""What GPTQ costs beside gptqmodel's own `quantize`: four layers of Qwen3-Embedding-0.6B's shape, one thread.

    OMP_NUM_THREADS=1 python docs/measured/recipes/gptq_anchor.py WORK BEIR_FOLDER

Each of three processes prints its CPU seconds, imports left out: two passes of sentence-transformers, the library's
`quantize` on the same texts (its pool of threads asks for more cores than two, so it is told of four), and a run of
`W4-gptq`, which has the two passes in it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import qwen3_in_mteb as shape
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM, Qwen3Model

BARE = """
model = SentenceTransformer(str(encoder), device="cpu", model_kwargs={"dtype": "float32"})
start = process_time()
for side, role in 2 * list(zip(texts, ("query", "document"))):
    model.encode(side, prompt_name=role, batch_size=32, show_progress_bar=False)
"""
LIBRARY = """
import os; os.cpu_count = os.process_cpu_count = lambda: 4
from gptqmodel import GPTQModel, QuantizeConfig
config = QuantizeConfig(bits=4, group_size=128, offload_to_disk=False)
model = GPTQModel.load(str(decoder), config, device="cpu", dtype=torch.float32)
read = AutoTokenizer.from_pretrained(decoder)
start = process_time()
model.quantize([dict(read(text)) for text in texts[1]], batch_size=4)
"""
OURS = """
from quantdrift import drift
from quantdrift.candidate.libraries import import_gptqmodel
import_gptqmodel()
start = process_time()
drift(str(encoder), "W4-gptq", data=str(folder), noise_floor=False)
"""
HEAD = """
import json, sys, torch
from pathlib import Path
from time import process_time
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer
encoder, decoder, folder = map(Path, sys.argv[1:])
texts = [[json.loads(line)["text"] for line in (folder / part).open()] for part in ("queries.jsonl", "corpus.jsonl")]
"""
TAIL = "print('CPU seconds:', round(process_time() - start, 1))"


def main(work: Path, beir: Path) -> None:
    """Make the model and its texts, and run the three."""
    encoder, decoder, folder = work / "model" / "a" / "b", work / "decoder", work / "texts"
    shape.SIZES |= {"num_hidden_layers": 4, "max_window_layers": 4}
    shape.N_TOKENS = 30_000
    shape.OTHERS["vocab_size"] = 30_005
    texts = shape.cut(beir, folder, 32, 16)
    if not encoder.exists():
        shape.save_model(encoder, texts)
        as_decoder(encoder, decoder)
    rows = [json.loads(line) for line in (folder / "qrels.jsonl").read_text().splitlines()]
    (folder / "qrels").mkdir(exist_ok=True)
    labels = ["query-id\tcorpus-id\tscore", *(f"{row['query-id']}\t{row['corpus-id']}\t1" for row in rows)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(labels) + "\n")
    for name, script in (("two bare passes", BARE), ("gptqmodel's quantize", LIBRARY), ("W4-gptq, all of it", OURS)):
        line = [sys.executable, "-c", HEAD + script + TAIL, encoder, decoder, folder]
        env = {**os.environ, "QUANTDRIFT_CACHE": "off", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(line, env=env, check=True, capture_output=True, text=True)
        print(f"{name}: {next(row for row in done.stdout.splitlines()[::-1] if row.startswith('CPU seconds'))}")


def as_decoder(encoder: Path, folder: Path) -> None:
    """Write the same weights as a language model, which the library takes."""
    torch.set_default_dtype(torch.float32)
    body = Qwen3Model.from_pretrained(encoder, dtype=torch.float32)
    model = Qwen3ForCausalLM(body.config)
    model.model.load_state_dict(body.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
