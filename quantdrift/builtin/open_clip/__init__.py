"""CLIP models of open_clip."""

from quantdrift.base.registry import Package
from quantdrift.kinds.encoder import EncoderKind

KIND = EncoderKind(
    what="a CLIP of open_clip, which searches texts and images",
    uses=("search", "classes"),
    load="quantdrift.builtin.open_clip.work:load_open_clip",
    accepts="quantdrift.models.files.named:is_open_clip",
    files=("open_clip_config.json",),
    packages=(Package(name="open-clip-torch", module="open_clip", extra="open-clip", note="CLIP models"),),
    place=10,
)
