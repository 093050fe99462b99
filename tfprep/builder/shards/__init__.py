"""The task of one shard: raw files to records."""
