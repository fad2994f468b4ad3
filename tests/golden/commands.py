"""The golden commands, in the order in which they run; later ones read what earlier ones wrote."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    # --- measure: the paper's model by every scheme that needs no library, then the tiny one
    "run W4-rtn": "run minilm@W4-rtn --data docs -k 20 --out runs/w4 --json",
    "run W3-channel": "run minilm@W3-channel --data docs -k 20 --out runs/w3 --json",
    "run W8-g64": "run minilm@W8-g64 --data docs -k 20 --out runs/w8 --json",
    "run W4A8": "run minilm@W4A8-g64 --data docs -k 20 --out runs/w4a8 --json",
    "run query side": "run minilm@W3-rtn+query --data docs -k 20 --out runs/query --json",
    "run gptq": "run tiny@W4-gptq --data docs -k 20 --out tinies/gptq --json",
    "run gptq_ao": "run tiny@W4-gptq_ao-channel --data docs -k 20 --out tinies/ao --json",
    "run awq": "run tiny@W4-awq --data docs -k 20 --out tinies/awq --json",
    "run hqq": "run tiny@W4-hqq --data docs -k 20 --out tinies/hqq --json",
    "run adaround": "run tiny@W4-adaround --data docs -k 20 --out tinies/adaround --json",
    "run classes": "run minilm@W3-rtn --data classes -k 5 --out classes-w3 --json",
    "run shortlist": "run cross@W3-rtn --data docs --shortlist bm.trec -k 12 --out reranked --json",
    "corpus size": ("corpus-size minilm@W3-rtn --data docs -k 20 --sizes 50,100,200 --out sizes --json"),
    "contrast": "contrast minilm@W3-rtn --data classes -k 20 --out contrasted --json",
    # --- repair
    "quantize": "quantize tiny@W4-gptq --data docs -o saved",
    "run saved": 'run "tiny vs saved" --data docs -k 20 --out tinies/saved --json',
    "allocate": ("allocate minilm@W3.5+gap+units=fused --data docs -o allocation.json --no-check --json"),
    "allocate checked": "allocate tiny@W3+sqnr+widths=2,3,4 --data docs -o tiny.json --json",
    "run allocation": "run minilm@allocation.json --data docs -k 20 --out runs/allocated --json",
    "predict": "predict minilm --data docs --widths 2,3,4,8 --json",
    "export gptqmodel": "export allocation.json --format gptqmodel",
    "export hqq": "export allocation.json --format hqq",
    "export torchao": "export allocation.json --format torchao",
    "export autoround": "export allocation.json --format autoround",
    "export compressed": "export allocation.json --format compressed_tensors",
    # --- read
    "metrics": "metrics runs/w4 --json",
    "metrics chosen": "metrics runs -m gold_lost@3 -m flip@1:separation=0..0.2 -m rbo@10 --json",
    "metrics per input": "metrics runs/w3 --per-input -m flip@1 -m separation --json",
    "metrics unknown": "metrics runs/w4 -m flop@1 --json",
    "breakdown": "breakdown runs --json",
    "compare": "compare runs/w4 runs/w3 --margin 0.05 --json",
    "law": "law runs tinies --json",
    "contenders": "contenders runs --json",
    "diff runs": "diff runs/w4 runs/w3 --json",
    "diff arms": "diff runs/w3 runs/w3 --arms reference,candidate --json",
    "diff trec": "diff bm.trec other.trec --qrels docs/qrels/test.tsv -o diffed --json",
    "diff other data": "diff runs/w4 classes-w3 --json",
    # --- trust
    "certify": "certify classes-w3 --alpha 0.1 --splits 5 --json",
    "certify save": "certify classes-w3 --alpha 0.1 --save check.json --json",
    "certify check": "certify classes-w3 --check check.json --json",
    "certify search": "certify runs --alpha 0.2 --splits 5 --json",
    "route": "route classes-w3 --score all --splits 5 --json",
    "route save": "route classes-w3 --save router.json --json",
    # --- guard
    "gate update": "gate runs/w4 --baseline base.json --update",
    "gate same": "gate runs/w4 --baseline base.json --json",
    "gate worse": "gate runs/w3 --baseline base.json --json",
    "gate rules": ("gate runs/w3 --rule 'flip@1 <= 0.1' --rule 'ndcg@10 no worse by 0.5' --baseline base.json --json"),
    "gate measured": "gate minilm@W4-rtn --data docs -k 20 --baseline base.json --json",
    "gate other data": "gate classes-w3 --baseline base.json --json",
    "gate limits": "gate runs/w4 --rule 'flip@1 <= 0.9' --json",
    "gate two": "gate bm.trec other.trec --rule 'flip@1 <= 0.05' --json",
    "gate no run": "gate nowhere --json",
    # --- refusals
    "no scheme": "run minilm --data docs",
    "bad scheme": "run minilm@W9-rtn --data docs",
    "no data": "run minilm@W4-rtn --data nowhere",
    "fraction": "run minilm@W3.5 --data docs",
}
"""Name to command line."""

EVIDENCE = (
    "runs/w4",
    "runs/w3",
    "runs/query",
    "tinies/gptq",
    "tinies/awq",
    "tinies/hqq",
    "tinies/adaround",
    "tinies/saved",
    "classes-w3",
    "reranked",
    "diffed",
    "sizes",
    "contrasted",
)
"""Folders whose runs' evidence is held on to, too."""
