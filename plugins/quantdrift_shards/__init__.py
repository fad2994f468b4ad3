"""A corpus larger than memory, which one or many workers read in shards."""

from quantdrift.parts import DataKind

DATA = DataKind(accepts="quantdrift_shards.corpus:is_sharded", read="quantdrift_shards.corpus:read_sharded")
