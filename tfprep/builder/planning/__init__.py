"""From a listing to the shards that are due: samples by shard, signatures, and what the parts of a build have in common."""
