"""Recognises the layout of a folder of raw data, for `tfprep init`."""
