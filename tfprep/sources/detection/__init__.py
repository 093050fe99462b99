"""Recognizes the layout of a folder of raw data, for `tfprep init`: a layout is accepted only if a rule explains every file.

A rule proposes a source with its options and names the side files of its format. The source's own listing says which files it
reads. Files that are left over, and doubts, refuse the layout.
"""

from __future__ import annotations

LAYOUTS = ("coco", "voc", "yolo", "table", "masks", "folders", "images", "archives", "arrays", "videos")
"""The layouts that `tfprep init --as` names."""
