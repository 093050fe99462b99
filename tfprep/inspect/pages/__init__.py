"""The pages: the report of a dataset and that of its duplicates. Each is one file that opens offline, without a script."""
