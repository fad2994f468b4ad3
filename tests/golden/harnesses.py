"""The three harnesses on the golden inputs, as their users call them."""

import json
from pathlib import Path
from typing import Any

import inputs


def mteb_scores() -> Any:
    """mteb's own evaluate on a pair: retrieval by the documents, in the current folder."""
    import mteb  # noqa: PLC0415 -- takes seconds
    from datasets import Dataset  # noqa: PLC0415 -- likewise

    from integration.quantdrift_mteb.mteb_samples import retrieval_task  # noqa: PLC0415 -- likewise

    asked, judged = inputs.queries()
    corpus = [{"id": i, "title": "", "text": text} for i, text in inputs.documents().items()]
    texts = {"corpus": corpus, "queries": [{"id": i, "text": text} for i, text in asked.items()]}
    labels = {"relevant_docs": judged, "top_ranked": None}
    data = {name: Dataset.from_list(rows) for name, rows in texts.items()} | labels
    task = retrieval_task("GoldenRetrieval", {"default": {"test": data}})
    model = mteb.get_model("quantdrift:minilm@W4-rtn")
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    return scores


def beir_results() -> Any:
    """beir's own evaluation of a pair."""
    from beir.retrieval.evaluation import EvaluateRetrieval  # noqa: PLC0415 -- takes seconds
    from beir.retrieval.models import SentenceBERT  # noqa: PLC0415 -- likewise
    from beir.retrieval.search.dense import DenseRetrievalExactSearch  # noqa: PLC0415 -- likewise

    from quantdrift_beir import QuantizedPair  # noqa: PLC0415 -- likewise

    asked, judged = inputs.queries()
    corpus = {name: {"title": "", "text": text} for name, text in inputs.documents().items()}
    search = DenseRetrievalExactSearch(QuantizedPair(SentenceBERT("tiny"), "W4-rtn"), batch_size=32)
    evaluator = EvaluateRetrieval(search, k_values=[1, 10])
    results = evaluator.retrieve(corpus, asked)
    plain = evaluator.evaluate(judged, results, [1, 10])
    flips = evaluator.evaluate_custom(judged, results, [1], metric="flip")
    return {"scores": plain, "flip": flips, "drift": dict(results.drift.items())}


def lm_eval_results() -> Any:
    """lm-eval's own evaluation of a pair."""
    from lm_eval import simple_evaluate  # noqa: PLC0415 -- takes seconds
    from lm_eval.tasks import TaskManager  # noqa: PLC0415 -- likewise

    manager = TaskManager(include_path=str(Path("tasks").absolute()), include_defaults=False)
    how: Any = {"task_manager": manager, "bootstrap_iters": 0, "device": "cpu", "batch_size": 4}
    pair = "pretrained=lm,scheme=W3-rtn"
    results = simple_evaluate("quantdrift", model_args=pair, tasks=["golden_questions"], **how)
    assert results is not None
    return json.loads(json.dumps(results["results"], default=str))


HARNESSES = {"mteb": mteb_scores, "beir": beir_results, "lm-eval": lm_eval_results}
"""Name to what its evaluation returns."""
