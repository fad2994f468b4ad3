"""LoRA adapters of peft: checked before they are read, and merged into the weights before anything is rounded."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from quantdrift.engine.encoders.schemas import ADAPTER, check_settings

ADAPTER_FILE = "adapter_config.json"
_MERGE = "Merge it into its base first (PeftModel.merge_and_unload(), save_pretrained(FOLDER)), and name that folder"


def base_of(settings: Mapping[str, Any], where: str) -> str:
    """Return the model that an adapter belongs to.

    Raises:
        UnsupportedError: it is no plain LoRA, or names no model.
    """
    decided = {key: value for key, value in settings.items() if value}
    check_settings(decided, ADAPTER, where, _MERGE)
    return str(decided["base_model_name_or_path"])


def merge_adapters(module: nn.Module) -> list[str]:
    """Replace every layer of an adapter by the base layer with the adapter merged in; return the adapters' names."""
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
