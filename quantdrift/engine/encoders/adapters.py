"""LoRA adapters of peft: checked before they are read, and merged into the weights before anything is rounded."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError

ADAPTER_FILE = "adapter_config.json"
SETTINGS = """
    alpha_pattern base_model_name_or_path bias exclude_modules fan_in_fan_out inference_mode init_lora_weights
    layers_pattern layers_to_transform lora_alpha lora_bias lora_dropout megatron_core peft_type peft_version
    qalora_group_size r rank_pattern revision target_modules task_type use_dora use_rslora
"""
"""Settings of a LoRA adapter that may say something; what others do is not known here."""


def base_of(settings: Mapping[str, Any], where: str) -> str:
    """Return the model that an adapter belongs to.

    Raises:
        UnsupportedError: it is no plain LoRA, or names no model.
    """
    kind, base = settings.get("peft_type"), settings.get("base_model_name_or_path")
    if kind != "LORA":
        raise UnsupportedError(f"{where} is an adapter of the kind {shown(str(kind))}; expected LORA, which is merged")
    if wrong := sorted(key for key, value in settings.items() if value and key not in SETTINGS.split()):
        raise UnsupportedError(
            f"{where} sets {', '.join(map(shown, wrong[:4]))}, which is not merged here; merge it into its base first: "
            "PeftModel.merge_and_unload(), save_pretrained(FOLDER), and name that folder"
        )
    if (drawn := settings.get("init_lora_weights")) not in (None, True, False, "gaussian", "orthogonal"):
        raise UnsupportedError(
            f"{where} has init_lora_weights {shown(str(drawn))}, which changes the weights of its base when it is "
            "loaded; merge it into its base first"
        )
    if not isinstance(base, str) or not base:
        raise UnsupportedError(f"{where} names no base_model_name_or_path; expected the model that it belongs to")
    return base


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
