"""A corpus that is larger than memory, read in shards by one or many workers."""

from quantdrift.parts import DataKind

DATA = DataKind(accepts="quantdrift_shards.corpus:is_sharded", read="quantdrift_shards.corpus:read_sharded")
