"""A CLIP of random weights, small enough for a unit test, and a search of captions in images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPModel

from quantdrift_paper.train_clip import processor_of
from support.beir_folder import numbered, write_beir_folder

WORDS = ("a", "photo", "of", "red", "green", "blue", "cat", "dog", "ship", "truck", "dark", "bright")


def small_clip(folder: Path, *, seed: int = 0) -> Path:
    """A folder that holds a CLIPModel and its processor."""
    processor = processor_of(WORDS, 16)
    tokenizer = processor.tokenizer
    of_text = {"vocab_size": len(tokenizer), "max_position_embeddings": 32, "hidden_size": 16, "intermediate_size": 32}
    of_text |= {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    both = {"num_hidden_layers": 2, "num_attention_heads": 2}
    of_images = {"image_size": 16, "patch_size": 8, "hidden_size": 24, "intermediate_size": 48}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config: Any = CLIPConfig(
            text_config={**both, **of_text}, vision_config={**both, **of_images}, projection_dim=12
        )
        model: Any = CLIPModel(config)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def image_search(folder: Path, *, n_images: int = 20, n_queries: int = 16, seed: int = 0) -> Path:
    """A folder in BEIR layout: captions of drawn words, images of drawn pixels."""
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(n_images)]
    queries = numbered("q", [" ".join(rng.choice(WORDS, 5)) for _ in range(n_queries)])
    images: dict[str, Any] = {f"i{row}": {"image": f"images/{row}.png"} for row in range(n_images)}
    write_beir_folder(folder, queries, images, {f"q{row}": [f"i{row % n_images}"] for row in range(n_queries)})
    (folder / "images").mkdir()
    for row, pixels in enumerate(drawn):
        Image.fromarray(pixels).save(folder / "images" / f"{row}.png")
    return folder
