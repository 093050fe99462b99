"""From the receipts of all shards to the dataset that readers see."""
