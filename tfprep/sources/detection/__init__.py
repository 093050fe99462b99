"""Recognizes the layout of a folder of raw data, for `tfprep init`: it is accepted only if a rule explains every file."""

LAYOUTS = ("coco", "voc", "yolo", "table", "masks", "folders", "images", "archives", "arrays", "videos")
"""The layouts that `tfprep init --as` names."""
