"""LoRA adapters of peft are merged into the weights before anything is quantized."""

from torch import nn


def merge_adapters(module: nn.Module) -> list[str]:
    """Merge every adapter into its base layer, which takes its place; return the names of the adapters."""
    if not any(hasattr(part, "lora_A") for part in module.modules()):
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415 -- it made these layers

    names: dict[str, None] = {}
    for path, part in list(module.named_modules()):
        if isinstance(part, BaseTunerLayer):
            part.merge(safe_merge=True)
            names |= dict.fromkeys(part.merged_adapters)
            module.set_submodule(path, part.get_base_layer())
    for part in module.modules():
        if getattr(part, "_hf_peft_config_loaded", False):
            part._hf_peft_config_loaded = False  # type: ignore[assignment]  # a flag of transformers
    return list(names)
