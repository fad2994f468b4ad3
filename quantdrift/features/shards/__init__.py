"""A corpus that is larger than memory, read in shards by one or many workers."""

from quantdrift.data.streamed import DataKind

DATA = DataKind(
    accepts="quantdrift.features.shards.corpus:is_sharded",
    check="quantdrift.features.shards.search:check_in_shards",
    read="quantdrift.features.shards.corpus:read_sharded",
    run="quantdrift.features.shards.search:run_shards",
)
