"""The search of AWQ by autoawq, which is deprecated: `+backend=autoawq`, where it is installed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.candidate.libraries import import_autoawq


def best_scaling(inputs: Tensor, magnitude: Tensor, weight: Tensor, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """Search by the library's quantizer without its constructor, which calibrates a model."""
    kind = import_autoawq().AwqQuantizer
    library = kind.__new__(kind)
    library.duo_scaling, library.n_parallel_calib_samples, library.max_chunk_memory = False, None, 2**30
    library.pseudo_quantize_tensor = lambda scaled: (rounded(scaled),)
    layer = _Kept(1, 1, bias=False)
    layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    unused = torch.ones_like(magnitude)  # the mean weights, which only duo_scaling looks at
    scaling: Tensor = library._compute_best_scale(inputs, unused, magnitude, layer, [layer], layer(inputs))
    return scaling


class _Kept(nn.Linear):
    """A layer whose state can be given back: the search saves it by `.cpu()`, which copies nothing on a CPU."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]  # as the search calls it
        return {key: value.clone() for key, value in super().state_dict().items()}
