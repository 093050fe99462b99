"""Pascal VOC: an XML file for each image, lists of images by split, masks with palettes.

Everingham et al., 'The Pascal Visual Object Classes (VOC) Challenge', IJCV 2010; http://host.robots.ox.ac.uk/pascal/VOC/voc2012/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tfprep.errors import RecipeError, SourceError
from tfprep.sources.annotations.listing import (
    AnnotatedImage,
    AnnotatedSource,
    WrongAnnotation,
    annotated_images,
    class_of,
    names_in_files,
    object_listing,
    object_rows,
)
from tfprep.sources.cells import sorted_classes
from tfprep.sources.folder import split_files
from tfprep.sources.patterns import Companions, Holes, Pattern, check_placeholders, compile_pattern
from tfprep.sources.raw import text_lines
from tfprep.sources.source import Listing, key_of
from tfprep.sources.splits import Row

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog", "horse",
    "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The 20 classes in the order of the numbers in `SegmentationClass`, which begin with 1."""
_MASKS = {"mask": "masks", "instances": "instance_masks"}
"""The option that says where the file of a field is."""


@dataclass(frozen=True, repr=False)
class Voc(AnnotatedSource):
    """Images with Pascal VOC's annotations. Fields: `image`, and those of `fields`.

    Boxes leave as x0, y0, x1, y1 in continuous pixels: VOC counts pixels from 1 and includes the last one, so 1 is taken from
    `xmin` and `ymin`. `mask` and `instances` are the files of `SegmentationClass` and `SegmentationObject`: 0 is background,
    255 the border of objects; instance i is the i-th object of the XML file, whose boxes say so by `box_numbers`.

    An image without an XML file is kept, with no boxes, unless `unannotated` says otherwise. An XML file without an image is
    counted in the tally. An image whose file is not XML is rejected.

    The options of all sources of annotations (`AnnotatedSource`) are given by name.

    Attributes:
        images: The pattern of the images, as `tfprep.sources.patterns` describes.
        annotations: The pattern of the XML files, with the same placeholders.
        sets: The pattern of the lists of images by split, such as `ImageSets/Main/{split}.txt`; each line is the name of an
            image, which stands for `*`. With None all images are taken.
        masks: The pattern of the masks of classes, if `mask` is one of the fields.
        instance_masks: The pattern of the masks of instances, if `instances` is one of the fields.
        first_pixel: The number of the first pixel: 1 in VOC, 0 in files of some tools.
        classes: The names of the classes in the order of their numbers; objects of others are left out, and counted in the
            tally. By default the names that occur, sorted; with `mask` VOC's 20, whose numbers the masks have.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    known_fields = ("boxes", "box_labels", "box_numbers", "difficult", "instances", "mask")
    in_files = _MASKS
    images: str = "JPEGImages/*"
    annotations: str = "Annotations/*.xml"
    sets: str | None = None
    masks: str = "SegmentationClass/*.png"
    instance_masks: str = "SegmentationObject/*.png"
    first_pixel: int = 1
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        image = compile_pattern(self.images, "Voc: images")
        by_split = image if self.sets is None else compile_pattern(self.sets, "Voc: sets")
        self.check_options(by_split, None if self.sets is None else ".txt")
        if self.sets is not None and "_1" not in image.holes:
            raise RecipeError(f"Voc: sets name images, which stand for '*' in images={self.images!r}")
        if {"boxes", "instances"} <= set(self.fields) and "box_numbers" not in self.fields:
            raise RecipeError(
                "Voc: boxes may be left out, and instances keep their numbers: add 'box_numbers' to fields"
            )
        if self.first_pixel not in (0, 1):
            raise RecipeError(f"Voc: first_pixel is 0 or 1; got {self.first_pixel!r}")
        names = ("annotations", *(_MASKS[mask] for mask in _MASKS if mask in self.fields))
        check_placeholders("Voc", image, {name: compile_pattern(getattr(self, name), f"Voc: {name}") for name in names})

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`."""
        classes = self.classes
        if classes is None:
            annotations = compile_pattern(self.annotations, "Voc: annotations")
            names = names_in_files(
                root, annotations, lambda data, path: (_text(one, "name") for one in _tree(data, path).iter("object"))
            )
            if "mask" in self.fields and (further := sorted(names.difference(VOC_CLASSES))):
                rule = "nothing says which numbers the masks have for them; give classes in the order of the numbers"
                raise SourceError(f"{root}: {', '.join(further[:3])} are not among VOC's 20 classes, and {rule}")
            classes = VOC_CLASSES if "mask" in self.fields else sorted_classes(names)
        numbers = {name: number for number, name in enumerate(classes)}

        def rows(tally: Counter[str]) -> Iterator[Row]:
            parse = partial(self._objects, numbers=numbers, tally=tally)
            return object_rows(self, root, self._images(root, tally), parse, tally)

        return object_listing(self, classes, rows, ("image", *(name for name in self.fields if name in _MASKS)))

    def _images(self, root: Path, tally: Counter[str]) -> Iterator[AnnotatedImage]:
        image, annotations = (compile_pattern(text, "Voc") for text in (self.images, self.annotations))
        masks = [compile_pattern(getattr(self, _MASKS[name]), name) for name in self.fields if name in _MASKS]
        companions = Companions(root)
        if self.sets is None:
            listed = annotated_images(self, root, image, annotations, tally)
        else:
            listed = self._listed(root, image, annotations, companions, tally)
        for one, holes in listed:
            yield one._replace(others=tuple(companions.find(mask, holes)[0] for mask in masks))

    def _listed(
        self, root: Path, image: Pattern, annotations: Pattern, companions: Companions, tally: Counter[str]
    ) -> Iterator[tuple[AnnotatedImage, Holes]]:
        for path, placeholders in split_files(root, self.sets or "", self.splits, "list", tally):
            for line in filter(None, text_lines(root / path, "list of images")):
                holes = {**placeholders, "_1": line}
                found, own = (companions.find(pattern, holes)[0] for pattern in (image, annotations))
                yield AnnotatedImage(found, placeholders["split"], own), holes

    def _objects(self, data: bytes, path: str, numbers: dict[str, int], tally: Counter[str]) -> dict[str, Any]:
        def item_of(numbered: tuple[int, ElementTree.Element]) -> dict[str, Any] | None:
            place, one = numbered
            where = f"{path}: object {place}"
            label = class_of(_text(one, "name"), numbers, tally, where)
            if label is None:
                return None
            flags = {"difficult": int(_text(one, "difficult") == "1")}
            box = one.find("bndbox")
            try:
                x0, y0, x1, y1 = (float(_text(box, side)) for side in ("xmin", "ymin", "xmax", "ymax"))
            except ValueError:
                rule = f"{where} has no bndbox with xmin, ymin, xmax and ymax as numbers"
                raise WrongAnnotation(rule) from None
            corners = [x0 - self.first_pixel, y0 - self.first_pixel, x1, y1]
            return {"id": where, "label": label, "box": corners, "number": place, "flags": flags}

        tree = _tree(data, path)
        sides = [_text(tree.find("size"), side) for side in ("height", "width")]
        known = all(side.isdecimal() and int(side) for side in sides)  # some tools write none, or 0
        size = [int(side) for side in sides] if known else None
        return {"size": size, **self.objects_of(enumerate(tree.iter("object"), 1), item_of)}


def _tree(data: bytes, path: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise WrongAnnotation(f"{path} is not whole XML: {error}") from error


def _text(element: ElementTree.Element | None, name: str) -> str:
    child = None if element is None else element.find(name)
    return "" if child is None or child.text is None else key_of(child.text.strip())
