"""Hooks on a model's linear layers that see what goes in and which gradients come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.models.layers import LinearLayer

__all__ = ["Arrived", "GradientWatch"]

Arrived = Callable[[int, Tensor, Tensor], None]
"""Called with a layer's number, its input [..., in_features] and the gradient by its output."""


class GradientWatch:
    """One forward pass that is watched, and backward passes through it; a context.

    Gradients begin at the outputs of the first layers, which become leaves: no gradient by a weight
    is computed, and nothing before these layers is passed through. Layers that hooks cannot see
    have gradients by their weights instead.

    Args:
        layers: of a model none of whose parameters asks for gradients.
        unseen: numbers of the layers whose weights shall have gradients.
    """

    def __init__(self, layers: Sequence[LinearLayer], unseen: set[int]) -> None:
        self._layers, self._unseen = layers, sorted(unseen)
        self._leaves: list[Tensor] = []
        self._called: set[int] = set()
        self._overwritten: set[int] = set()
        self._arrived: Arrived | None = None
        self._stack = ExitStack()

    def __enter__(self) -> GradientWatch:
        for number in self._unseen:
            self._layers[number].parameter.requires_grad_(True)
        for number, layer in enumerate(self._layers):
            for module in layer.modules:
                hook = module.register_forward_hook(partial(self._ran, number), with_kwargs=True)
                self._stack.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._leaves.clear()
        for number in self._unseen:
            self._layers[number].parameter.requires_grad_(False)

    def called(self) -> set[int]:
        """Layers that a module was called for."""
        return set(self._called)

    def uncalled(self) -> set[int]:
        """The others."""
        return set(range(len(self._layers))) - self._called

    def overwritten(self) -> set[int]:
        """Layers whose input was written over, in place, before a gradient came back."""
        return set(self._overwritten)

    def backward(self, outputs: Tensor, seed: Tensor, arrived: Arrived) -> list[int]:
        """Pass gradients back.

        Args:
            outputs: what the forward pass gave.
            seed: gradients by them, of the same shape.
            arrived: called for every layer that a gradient comes back to, once per call of it.

        Returns:
            Of the unseen layers those whose weights the outputs depend on.
        """
        parameters = self._parameters()
        self._arrived = arrived
        try:
            found = self._gradients(outputs, seed, [*self._leaves, *parameters])
        finally:
            self._arrived = None
        reached = {
            id(parameter)
            for parameter, gradient in zip(parameters, found[len(self._leaves) :], strict=True)
            if gradient is not None
        }
        return [n for n in self._unseen if id(self._layers[n].parameter) in reached]

    def by_weights(
        self, outputs: Tensor, seed: Tensor, numbers: Sequence[int]
    ) -> dict[int, Tensor]:
        """The gradients of <seed, outputs> by the weights of unseen layers.

        Args:
            outputs: as for `backward`.
            seed: likewise.
            numbers: of the layers.

        Returns:
            Number to [out_features, in_features]; none for layers that have no part in it.
        """
        parameters = self._parameters()
        found = self._gradients(outputs, seed, parameters)
        of = {id(p): gradient for p, gradient in zip(parameters, found, strict=True)}
        gradients = {}
        for number in numbers:
            layer = self._layers[number]
            gradient = of[id(layer.parameter)]
            if gradient is not None:
                gradient = gradient if layer.expert is None else gradient[layer.expert]
                gradients[number] = gradient.t() if layer.transposed else gradient
        return gradients

    def _gradients(
        self, outputs: Tensor, seed: Tensor, by: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        if not (by and outputs.requires_grad):
            return (None,) * len(by)
        return torch.autograd.grad(
            outputs, by, grad_outputs=seed, retain_graph=True, allow_unused=True
        )

    def _parameters(self) -> list[nn.Parameter]:
        """Those of the unseen layers, each once; experts share one."""
        found = {id(p): p for p in (self._layers[n].parameter for n in self._unseen)}
        return list(found.values())

    def _ran(
        self,
        number: int,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Tensor | None:
        if not isinstance(output, Tensor):
            return None  # a router, which gives more than its product
        x: Tensor = args[0] if args else kwargs["input"]
        self._called.add(number)
        leaf = None
        if not output.requires_grad:
            output = leaf = output.detach().requires_grad_()
            self._leaves.append(leaf)
        version = x._version

        def hook(gradient: Tensor) -> None:
            if self._arrived is not None:
                if x._version != version:
                    self._overwritten.add(number)
                self._arrived(number, x, gradient)

        output.register_hook(hook)
        return leaf
