"""What commands that run a model are told, and what of that the measurement takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantdrift.engine.store import EmbeddingStore, default_store
from quantdrift.progress import Progress, Silent, Terminal

if TYPE_CHECKING:
    from quantdrift.engine.search import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Options of every command that runs a model, as typed by the user."""

    batch_size: int
    device: str | None
    revision: str | None
    cache: bool
    json_output: bool
    quiet: bool

    @property
    def settings(self) -> Settings:
        """How inputs are put through it."""
        from quantdrift.engine.search import Settings  # noqa: PLC0415 -- torch

        return Settings(batch_size=self.batch_size, noise_floor=False)

    @property
    def store(self) -> EmbeddingStore:
        """Where embeddings are kept, if they are."""
        return default_store() if self.cache else EmbeddingStore(None)

    @property
    def progress(self) -> Progress:
        """Bars on the terminal, unless it is to be quiet."""
        return Silent() if self.quiet else Terminal()

    @property
    def kept(self) -> str:
        """What is said after Ctrl-C of what is left."""
        if self.store.root is None:  # QUANTDRIFT_CACHE=off keeps nothing either
            return ""
        return "; embeddings and layers that were finished are kept, and the same command goes on from there"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions(ModelOptions):
    """Options of commands that write runs."""

    split: str
    k: int
    noise_floor: bool
    seed: int

    @property
    def settings(self) -> Settings:
        """How a pair is measured."""
        from quantdrift.engine.search import Settings  # noqa: PLC0415 -- torch

        return Settings(k=self.k, batch_size=self.batch_size, noise_floor=self.noise_floor, seed=self.seed)
