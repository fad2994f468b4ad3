"""The widths of a language model's layers, chosen by the gaps between the choices of the tasks' questions.

The gap of a question is the log-likelihood of the choice that the reference prefers less that of another choice. Labels
play no part. At most a quarter of the questions is used, and the drift is over the others.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.measuring.problem import GapProblem, contenders_for, draw_queries
from quantdrift.models.store import default_store
from quantdrift.sensitivity.allocate import allocation_by, seed_of, wanted_of
from quantdrift.spec.grammar import needs_inputs

Question = tuple[str, int]
"""The name of a task and lm-eval's number of a document."""


class Likelihoods(nn.Module):
    """A causal language model whose output is the log-likelihood of what follows a prompt, float32 [n, 1]."""

    def __init__(self, model: nn.Module) -> None:
        """Take the model, which gives the logits of the next token at each place."""
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, asked: Tensor) -> Tensor:
        """Sum the log-likelihoods of the tokens that are asked for; all are [n, length], padded on the right."""
        # nothing follows the last token, for which a model may have no position
        logits = self.model(input_ids=tokens[:, :-1], attention_mask=mask[:, :-1]).logits
        rows, places = asked[:, 1:].nonzero(as_tuple=True)
        likely = logits[rows, places].float().log_softmax(dim=1)
        each = likely.gather(1, tokens[rows, places + 1][:, None])
        total: Tensor = each.new_zeros(len(tokens), 1).index_add(0, rows, each)
        return total


def choose_widths(lm: Any, requests: Sequence[Any], *, batch_size: int, progress: Progress) -> list[Question]:
    """Choose the widths of a pair's layers by its criterion, and return the questions that they were measured on."""
    pair = lm.pair
    if lm.world_size > 1:
        raise UnsupportedError(f"{pair.scheme} chooses widths in one process; got {lm.world_size}. Start one")
    problem, measured_on, modules = None, list[Question](), None
    if needs_inputs(pair.scheme.criterion):
        questions = questions_of(requests)
        if lm.backend != "causal" or not questions:
            raise DataError(
                f"{pair.scheme} measures layers on the gaps between the choices of questions, by a causal model; "
                "expected a task with choices (piqa, blimp). Add one, or take a criterion that needs no inputs "
                "(reconstruction, sqnr)"
            )
        names = list(questions)
        drawn = draw_queries(len(names), wanted=wanted_of(pair.scheme), seed=seed_of(pair.scheme))
        measured_on = [names[row] for row in drawn.tolist()]
        modules = [Likelihoods(lm.model)]
        problem = problem_of(lm, modules[0], [questions[name] for name in measured_on], batch_size)
    ids = [f"{task}: {document}" for task, document in measured_on]
    root = default_store().root
    allocation, _ = allocation_by(pair, problem, ids=ids, dataset=None, root=root, progress=progress, modules=modules)
    pair.choose([allocation.width_of[layer.name] for layer in pair.layers], by=allocation, for_all_data=False)
    return measured_on


def questions_of(requests: Sequence[Any]) -> dict[Question, list[Any]]:
    """Return the requests of every question with choices, in lm-eval's order; those without its prompt are left out."""
    found: dict[Question, list[Any]] = {}
    for request in requests:
        if request.request_type == "loglikelihood":
            found.setdefault((str(request.task_name), request.doc_id), []).append(request)
    for name, asked in found.items():  # acc_mutual_info asks for every choice once more, without a prompt
        found[name] = [request for request in asked if request.args[0]] or asked
    return {name: asked for name, asked in found.items() if len(asked) > 1}


def problem_of(lm: Any, model: nn.Module, questions: Sequence[Sequence[Any]], batch_size: int) -> GapProblem:
    """Return the gaps between the first choice and the next ones; a row is a prompt with one choice."""
    rows = [tokens_of(lm, *request.args) for asked in questions for request in asked]

    def encode(chosen: NDArray[np.int64]) -> NDArray[np.float32]:
        given = torch.zeros((3, len(chosen), max(len(rows[row][0]) for row in chosen)), dtype=torch.long)
        for place, row in enumerate(chosen.tolist()):
            tokens, n_asked = rows[row]
            given[0, place, : len(tokens)] = torch.tensor(tokens)
            given[1, place, : len(tokens)] = 1
            given[2, place, len(tokens) - n_asked : len(tokens)] = 1
        with torch.no_grad(), lm.autocast():
            made: NDArray[np.float32] = model(*given.to(lm.device)).float().cpu().numpy()
        return made

    order = np.argsort([-len(tokens) for tokens, _ in rows], kind="stable").astype(np.int64)
    batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
    n_contenders = min(contenders_for(len(questions)), max(map(len, questions)) - 1)
    roles = np.full((len(questions), n_contenders, 2), -1, dtype=np.int64)
    problem = GapProblem(encode=encode, batches=batches, rows=roles, valid=roles[..., 0] >= 0, gap=_gap)
    outputs = problem.outputs()
    start = 0
    for number, asked in enumerate(questions):
        ranked = start + np.argsort(-outputs[start : start + len(asked), 0], kind="stable")
        others = ranked[1 : n_contenders + 1]
        roles[number, : len(others)] = np.stack([np.broadcast_to(ranked[:1], others.shape), others], axis=-1)
        start += len(asked)
    return replace(problem, valid=roles[..., 0] >= 0, reference=outputs)


def _gap(outputs: Tensor) -> Tensor:
    """The log-likelihood of the first choice less that of the other; outputs are [n, n_contenders, 2, 1]."""
    return outputs[:, :, 0, 0] - outputs[:, :, 1, 0]


def tokens_of(lm: Any, prompt: str, choice: str) -> tuple[list[int], int]:
    """Return the tokens of a prompt and a choice, at most as many as the model reads, and how many are the choice's."""
    if prompt:
        before, after = lm._encode_pair(prompt, choice)
    else:
        before, after = [lm.prefix_token_id], lm.tok_encode(choice, add_special_tokens=False)
        if after[:1] == before:
            before, after = after[:1], after[1:]
    tokens = (before + after)[-(lm.max_length + 1) :]
    return tokens, min(len(after), len(tokens) - 1)
