"""The nodes of a Ray cluster as a place where tasks run, as those of `tfprep.child_process` are on one machine."""
