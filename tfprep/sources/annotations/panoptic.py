"""COCO's panoptic segmentation: a PNG of segment ids for each image, and a JSON file that says what they are.

Kirillov et al., 'Panoptic Segmentation', CVPR 2019; the format is that of https://cocodataset.org/#format-data: a pixel's id is
R + 256 * G + 256 * 256 * B, and 0 where nothing is labeled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfprep import images
from tfprep.errors import SampleError
from tfprep.fields import Array, Size
from tfprep.sources.annotations.coco import CocoFiles, Crowds, box_corners, image_file_name
from tfprep.sources.annotations.listing import (
    AnnotatedSource,
    Unannotated,
    WrongAnnotation,
    check_choice,
    checked_size,
    image_path,
    image_template,
    object_listing,
)
from tfprep.sources.annotations.objects import BadAnnotations
from tfprep.sources.patterns import Template, compile_pattern
from tfprep.sources.source import Entry, FieldDecoder, Listing, key_of
from tfprep.sources.splits import Row


@dataclass(frozen=True, repr=False)
class CocoPanoptic(AnnotatedSource):
    """Images with COCO's panoptic segmentation. Fields: `image`, and those of `fields`.

    `mask` is 0 where nothing is labeled, and c + 1 for class c, which are the categories in the order of their ids.
    `instances` is 1, 2, ... for the things in the order of the boxes, and 0 for stuff. A PNG with a segment that the JSON file
    does not name, or without one that it names, rejects its image.

    The options of all sources of annotations (`AnnotatedSource`) are given by name.

    Attributes:
        annotations: The file, relative to the root, or a pattern with `{split}`.
        images: Where an image is; `{file_name}` is that of the image.
        segments: Where its PNG is; `{file_name}` is that of the annotation.
        crowds: "void" gives the pixels of crowds the number `void`, without a box. "skip" makes them background. "keep" takes
            each for one thing.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    known_fields = ("mask", "instances", "boxes", "box_labels", "box_numbers")
    in_files = ("mask", "instances")
    annotations: str = "annotations/panoptic_{split}.json"
    images: str = "{split}/{file_name}"
    segments: str = "panoptic_{split}/{file_name}"
    fields: tuple[str, ...] = field(default=("mask", "instances"), kw_only=True)
    crowds: Crowds = "void"
    unannotated: Unannotated = field(default="reject", kw_only=True)
    bad_annotations: BadAnnotations = field(default="reject", kw_only=True)

    def __post_init__(self) -> None:
        pattern = compile_pattern(self.annotations, "CocoPanoptic: annotations")
        self.check_options(pattern, ".json")
        check_choice("CocoPanoptic: crowds", self.crowds, ("void", "skip", "keep"))
        # The PNG has the pixels of each segment, and numbers instances by the places of all things.
        check_choice("CocoPanoptic: bad_annotations", self.bad_annotations, ("reject",))
        for option in ("images", "segments"):
            image_template(getattr(self, option), {"file_name"} | pattern.holes, f"CocoPanoptic: {option}")

    def decoders(self) -> dict[str, FieldDecoder]:
        """The decoders of fields that are made of segments and objects, and of images that do not become 8-bit RGB."""
        return super().decoders() | {n: Segments(n, self.void) for n in self.fields if n in self.in_files}

    def scan(self, root: Path) -> Listing:
        """List the images of all annotation files below `root`; see `Source.scan`."""
        files = CocoFiles(self, root, self.annotations, None)
        return object_listing(self, files.names, partial(self._rows, files), ("image", "segments"))

    def _rows(self, files: CocoFiles, tally: Counter[str]) -> Iterator[Row]:
        template, segments = Template.parse(self.images), Template.parse(self.segments)
        for image, of_image, holes, file in files.images(tally):
            path = image_path(template, {**holes, "file_name": image_file_name(image)}, file)
            name = of_image[0].get("file_name") if of_image else path.rpartition("/")[2].rpartition(".")[0] + ".png"
            png = image_path(segments, {**holes, "file_name": name}, file)
            part = self._objects(image, of_image, files)
            yield Entry(key_of(path), holes["split"], (path, png), (part,)), None

    def _objects(self, image: Mapping[str, Any], annotations: list[Any], files: CocoFiles) -> dict[str, Any]:
        part: dict[str, Any] = {"size": checked_size(image), "objects": [], "stuff": []}
        try:
            if not annotations:
                raise WrongAnnotation("the image has no segments")
            for one in annotations[0].get("segments_info") or ():
                if not isinstance(one, dict) or not isinstance(one.get("id"), int):
                    raise WrongAnnotation(f"a segment is an object with an id; got {one!r:.60}")
                name = f"segment {one['id']}"
                label = files.number(one.get("category_id"), name)
                item: dict[str, Any] = {"id": name, "label": label, "segment": one["id"]}
                if one.get("iscrowd") and self.crowds != "keep":
                    item |= {"void": True, "skip": self.crowds == "skip"}
                if thing := files.by_id[one["category_id"]][2]:
                    item["box"] = box_corners(one.get("bbox"), name)
                part["objects" if thing else "stuff"].append(item)
        except WrongAnnotation as fault:
            part["fault"] = str(fault)
        return part


@dataclass(frozen=True)
class Segments:
    """Makes a mask of the PNG of segment ids, with what the JSON file says about each."""

    field: str
    void: int

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        return images.image_size(raw["segments"])

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Array:
        part = raw["objects"]
        if part.get("fault"):
            raise SampleError(part["fault"])
        ids = images.decode_image(raw["segments"]).astype(np.int64) @ np.array([1, 1 << 8, 1 << 16])
        present, places = np.unique(ids, return_inverse=True)
        numbers, things = {0: 0}, 0
        for thing, one in [*((True, one) for one in part["objects"]), *((False, one) for one in part["stuff"])]:
            things += thing and not one.get("void")
            own = one["label"] + 1 if self.field == "mask" else (things if thing else 0)
            numbers[one["segment"]] = (0 if one["skip"] else self.void) if one.get("void") else own
        strange = set(present.tolist()) ^ (set(numbers) - ({0} - set(present.tolist())))
        if strange:
            one = min(strange)
            where = "the JSON file, but not in the PNG" if one in numbers else "the PNG, but not in the JSON file"
            raise SampleError(f"segment {one} is in {where}")
        if max(numbers.values()) > max(255, self.void):
            raise SampleError(f"numbers up to {max(numbers.values())} do not fit; give void=65535")
        table = np.array([numbers[one] for one in present.tolist()], np.uint8 if self.void <= 255 else np.uint16)
        return np.asarray(table[places.reshape(ids.shape)])
