from __future__ import annotations

import json
import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from mteb.results.task_result import TaskResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.types import RelevantDocumentsType

    Rankings = Mapping[str, Mapping[str, float]]

DRIFT_K_VALUES = (1, 10)


def _ranked(
    scores: Mapping[str, float], *, query_id: str, task: AbsTaskRetrieval | None
) -> list[str]:
    """Documents by score, as the task counts them; equal scores by id, alike in both runs."""
    ranked = sorted(sorted(scores), key=scores.__getitem__, reverse=True)
    if task is not None and task.ignore_identical_ids:
        ranked = [doc_id for doc_id in ranked if doc_id != query_id]
    return ranked[1:] if task is not None and task.skip_first_result else ranked


def _rate(key: str, hits: int, n: int) -> dict[str, float | None]:
    """A share of n queries with its 95% Wilson interval; None if there is no query."""
    if n == 0:
        return {key: None}
    share, z = hits / n, NormalDist().inv_cdf(0.975)
    center = (2 * hits + z * z) / (2 * (n + z * z))
    half = z * math.sqrt(4 * hits * (1 - share) + z * z) / (2 * (n + z * z))
    low = 0.0 if hits == 0 else center - half
    high = 1.0 if hits == n else center + half
    return {key: share, f"{key}_low": low, f"{key}_high": high}


def calculate_drift_scores(
    reference: Rankings,
    candidate: Rankings,
    relevant_docs: RelevantDocumentsType,
    k_values: Sequence[int] = DRIFT_K_VALUES,
    *,
    task: AbsTaskRetrieval | None = None,
) -> dict[str, float | int | None]:
    """Compare the rankings of two models, or of a model before and after compression, query by query.

    Args:
        reference: Scores of the retrieved documents by query, of the model before.
        candidate: The same, of the model after.
        relevant_docs: Relevance judgements by query.
        k_values: Numbers of ranks in which relevant documents are looked for.
        task: The task, whose `ignore_identical_ids` and `skip_first_result` count.

    Returns:
        A dictionary of keys for the scores of a split. Shares are fractions, with the ends of their 95% interval in
            `_low` and `_high`, and None where no query counts:

            - `drift_n_inputs`: Queries compared.
            - `drift_flip_at_1`: Of all queries, the share with another first document.
            - `drift_gold_lost_at_k`: Of the queries with a relevant document in the reference's top k, the share where
                one of them left it.
            - `drift_gold_gained_at_k`: The same, from the candidate's top k back to the reference's.

    Raises:
        ValueError: If the two did not answer the same queries.
    """
    if reference.keys() != candidate.keys():
        differ = sorted(reference.keys() ^ candidate.keys())
        raise ValueError(
            f"The two models answered different queries: {len(differ)} of them have one ranking, e.g. {differ[:3]}."
        )
    tops = [
        {q: _ranked(run[q], query_id=q, task=task) for q in reference}
        for run in (reference, candidate)
    ]
    before, after = tops
    flips = sum(before[q][:1] != after[q][:1] for q in before)
    keys: dict[str, float | int | None] = {"drift_n_inputs": len(before)}
    keys |= _rate("drift_flip_at_1", flips, len(before))
    for k in k_values:
        for name, here, there in (
            ("lost", before, after),
            ("gained", after, before),
        ):
            hits = n = 0
            for query_id, ranked in here.items():
                grades = relevant_docs.get(query_id, {})
                gold = {doc_id for doc_id in ranked[:k] if grades.get(doc_id, 0) > 0}
                n += bool(gold)
                hits += not gold <= set(there[query_id][:k])
            keys |= _rate(f"drift_gold_{name}_at_{k}", hits, n)
    return keys


def add_drift_scores(
    result: TaskResult,
    reference_result: TaskResult,
    *,
    task: AbsTaskRetrieval,
    prediction_folder: Path,
    reference_prediction_folder: Path,
) -> TaskResult:
    """Add to the result of a model which answers it changed, compared with another run of the same task.

    Args:
        result: The result of the candidate, e.g. of a model in a [`CompressionWrapper`][mteb.models.CompressionWrapper].
        reference_result: The result of the reference, e.g. of the model without compression.
        task: The retrieval task of both.
        prediction_folder: The `prediction_folder` of the candidate's evaluation.
        reference_prediction_folder: The `prediction_folder` of the reference's evaluation.

    Returns:
        A copy of the result with the keys of [`calculate_drift_scores`][mteb.results.drift.calculate_drift_scores] and
            `drift_reference_main_score` in every split and subset. All other keys stay as they are.

    Raises:
        ValueError: If the results are of different tasks or revisions, or have different splits, subsets or queries.
    """
    for name in ("task_name", "dataset_revision"):
        ours, theirs = getattr(result, name), getattr(reference_result, name)
        if ours != theirs:
            raise ValueError(
                f"Results of one task expected, but {name} differs: {ours} and {theirs}."
            )
    if not task.data_loaded:
        task.load_data()
    predictions, reference_predictions = (
        json.loads(task._predictions_path(folder).read_text(encoding="utf-8"))
        for folder in (prediction_folder, reference_prediction_folder)
    )
    mains = {
        (split, scores["hf_subset"]): scores["main_score"]
        for split, subsets in reference_result.scores.items()
        for scores in subsets
    }
    data: dict[str, Any] = result.to_dict()
    for split, subsets in data["scores"].items():
        for scores in subsets:
            subset = scores["hf_subset"]
            try:
                rankings = [
                    p[subset][split] for p in (reference_predictions, predictions)
                ]
                main_score = mains[split, subset]
            except KeyError as e:
                raise ValueError(
                    f"No predictions or no score of {subset}/{split} in one of the runs."
                ) from e
            relevant_docs = task.dataset[subset][split]["relevant_docs"]
            scores["drift_reference_main_score"] = main_score
            scores.update(calculate_drift_scores(*rankings, relevant_docs, task=task))
    return TaskResult.from_dict(data)
