"""GPTQ by optimum, which walks a model block by block; gptqmodel rounds, as it does in optimum."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.engine.quantizers.base import Moments, QuantizedWeight
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.libraries import GPTQMODEL, GRIDS, Library, import_gptqmodel, setting, silenced
from quantdrift.errors import MissingExtraError, UnsupportedError
from quantdrift.spec import Scheme

OPTIMUM = Library(backend="optimum", module="optimum", distribution="optimum", extra="optimum")
BITS = (2, 3, 4, 8)
"""Widths that optimum takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimumGptq:
    """optimum's GPTQQuantizer as a method that walks the model itself.

    It chooses the layers (linear modules inside the blocks), their order, and what they see: inputs
    from quantized blocks before, one forward pass of a block for each of its layers. Each layer is
    then rounded as by `Gptq` with gptqmodel on the library's grid, so that the guards are the same.

    Attributes:
        bits: one of BITS.
        group_size: input weights that share a scale, None for one scale per output channel.
        act_order: whether columns go in decreasing order of the second moment's diagonal.
    """

    bits: int
    group_size: int | None
    act_order: bool = False

    needs_moments = True
    has_zero_points = False

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """Quantize one weight matrix; arguments, result and errors as `Gptq.quantize`."""
        return self._method().quantize(weight, moments)

    def describe(self) -> dict[str, str]:
        """Both libraries' versions, and the grid."""
        return self._method().describe() | {
            "backend": OPTIMUM.backend,
            "version": OPTIMUM.version(),
            "gptqmodel": GPTQMODEL.version(),
        }

    def walk_blocks(
        self,
        model: nn.Module,
        blocks: str,
        examples: Sequence[Mapping[str, Tensor]],
        arrive: Callable[[nn.Module, Moments], None],
    ) -> None:
        """Let optimum quantize the blocks of a model.

        Args:
            model: a transformers model; optimum sets attributes, hooks and settings of it, and
                leaves them.
            blocks: path in the model of its list of blocks.
            examples: "input_ids" and "attention_mask", int64 [n, n_tokens], on the CPU.
            arrive: called with a module and the moments of its input, when it is to be quantized in
                place. No token may have reached it.

        Raises:
            UnsupportedError: a library cannot be imported.
        """
        gptqmodel, log = import_gptqmodel()
        library = _own_copy_of_optimum()
        library.tqdm = lambda items, **_: items  # type: ignore[attr-defined]  # its import
        library.GPTQ = _solver(gptqmodel.GPTQ, arrive)  # type: ignore[attr-defined]  # its import
        with silenced(log):
            quantizer = library.GPTQQuantizer(
                bits=self.bits,
                dataset=[dict(example) for example in examples],  # it moves them in place
                group_size=self.group_size or -1,
                act_group_aware=False,  # the default refuses one group for a whole row
                block_name_to_quantize=blocks,
                module_name_preceding_first_block=[],  # these are where the model is
            )
            quantizer.pack_model = lambda **_: None  # it would put other modules into the model
            quantizer.post_init_model = lambda model: model
            quantizer.quantize_model(model)

    def _method(self) -> Gptq:
        return Gptq(
            bits=self.bits,
            group_size=self.group_size,
            act_order=self.act_order,
            backend=GPTQMODEL.backend,
            grid="library",
        )


def from_scheme(scheme: Scheme) -> OptimumGptq:
    """The method as a scheme with `+backend=optimum` asks for it, `gptq` or `gptq_ao`.

    Raises:
        UnsupportedError: another grid than the library's, or a width that optimum does not take.
        MissingExtraError: optimum, or gptqmodel, without which it quantizes nothing, is missing.
    """
    grid = setting(scheme, "grid", GRIDS)
    if grid != "library":
        raise UnsupportedError(
            f"{scheme} asks for the paper's grid, and optimum has a grid of its own; add "
            "+grid=library, or use +backend=gptqmodel"
            if grid is None
            else f"optimum has a grid of its own, got +grid={grid}; use +grid=library, or +backend=gptqmodel"
        )
    if scheme.weight_bits not in BITS:
        widths = ", ".join(map(str, BITS))
        raise UnsupportedError(
            f"optimum quantizes to {widths} bits, not to {scheme.weight_bits}; use one of these or +backend=gptqmodel"
        )
    for library in (OPTIMUM, GPTQMODEL):
        if not library.is_installed():
            raise MissingExtraError(library.distribution, OPTIMUM.extra, needed_for=str(scheme))
    return OptimumGptq(
        bits=int(scheme.weight_bits), group_size=scheme.group_size, act_order=scheme.quantizer == "gptq_ao"
    )


def _own_copy_of_optimum() -> ModuleType:
    """optimum's module, loaded once more, so that names in it can be changed for one walk."""
    try:
        found = importlib.util.find_spec("optimum.gptq.quantizer")
        if found is None or found.origin is None:
            raise ImportError("it has no module gptq.quantizer")  # noqa: TRY301 -- as any failure
        name = "optimum.gptq._of_quantdrift"  # relative imports in it start from the package
        spec = importlib.util.spec_from_file_location(name, found.origin)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot read {found.origin}")  # noqa: TRY301 -- as any failure
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
    except Exception as error:
        raise UnsupportedError(
            f"optimum {OPTIMUM.version()} is installed but cannot be imported "
            f"({type(error).__name__}: {error}); install a version that fits the installed "
            "gptqmodel and transformers, or use +backend=gptqmodel"
        ) from error
    return library


def _solver(base: Any, arrive: Callable[[nn.Module, Moments], None]) -> type:
    """What optimum makes for every layer: gptqmodel's collector of inputs, and `arrive`."""

    class Solver(base):  # type: ignore[misc]  # not typed
        def __init__(self, module: nn.Module, qcfg: Any) -> None:
            super().__init__(module, qcfg=qcfg)
            self._absolute = torch.zeros(self.columns)
            self._largest = 0.0

        def add_batch(self, inp: Tensor, out: Tensor, batch_index: int | None = None) -> None:
            if isinstance(self.module, nn.Conv2d) or not inp.numel():
                return  # optimum would quantize convolutions too
            super().add_batch(inp, out, batch_index)
            absolute = inp.detach().abs().flatten(0, -2)
            self._absolute += absolute.sum(dim=0, dtype=torch.float32).cpu()
            self._largest = max(self._largest, float(absolute.max()))

        def fasterquant(self, **settings: Any) -> tuple[None, None, None]:
            hessian = self.finalize_hessian()  # 2 / n_tokens times the sum of x x^T
            moments = Moments(
                second=hessian / 2,
                mean_abs=self._absolute.to(hessian.device) / max(1, self.nsamples),
                absmax=self._largest,
                n_tokens=self.nsamples,
            )
            self.H = None
            arrive(self.module, moments)
            return None, None, None  # what packing would need

    return Solver
