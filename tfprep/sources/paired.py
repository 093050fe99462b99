"""Images with masks, maps or further images, which belong together by patterns with the same placeholders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfprep import images
from tfprep.errors import RecipeError, SampleError, SourceError
from tfprep.fields import Array, Kind, Size
from tfprep.sources.cells import FILE_KINDS
from tfprep.sources.folder import Splits, check_common, class_names, dicom_group, fitting, listed_images
from tfprep.sources.patterns import Companions, Pattern, check_placeholders, compile_pattern, walk
from tfprep.sources.pixels import Pixels, pixel_decoders
from tfprep.sources.source import Entry, FieldDecoder, Listing, check_fields, constructor_text, key_of
from tfprep.sources.splits import Row, listing_of


@dataclass(frozen=True, repr=False)
class Paired:
    """Images with masks or other files. Fields: `image`, `mask`, those of `fields`, and `label` if `image` has `{label}`.

    The placeholders of `image` fill in the other patterns; `*` and `**` correspond by their order. A file that fits the pattern
    of another field is never an image, so `{split}/*.png` and `{split}annot/*.png` read CamVid.

    An image without a mask is listed with the path where the mask is expected, and is rejected when it is read. The listing's
    tally counts these images, and masks without an image.

    Attributes:
        image: The pattern of the images, as `tfprep.sources.patterns` describes.
        mask: The pattern of the masks.
        fields: Further fields with kind and pattern: `{"depth": ("map", "{split}/depth/*.png")}`.
        classes: The names of the mask's class numbers.
        numbers: The class number of each number in the masks' files: `{0: 255, 1: 0, 2: 1}`. A sample with another number is
            rejected, unless `numbers` has a key `None` for all others.
        palette: The class number of each color, where masks are RGB pictures: `{(128, 64, 128): 3}`. A sample with another
            color is rejected.
        void: The number of void pixels in the mask, which belong to no class: 11 in CamVid, 255 in Cityscapes. It fills what is
            outside of the image, and derived inputs leave it out.
        splits: As in `Folder`.
        pixels: How images and maps become pixels, if images are not 8-bit RGB: `{"image": sources.Pixels()}`.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    image: str
    mask: str | None = None
    fields: Mapping[str, tuple[Kind, str]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    numbers: Mapping[int | None, int] = field(default_factory=dict)
    palette: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    void: int | None = None
    splits: Splits = None
    pixels: Mapping[str, Pixels] = field(default_factory=dict)

    def __post_init__(self) -> None:
        image = compile_pattern(self.image, "Paired: image")
        fields = check_fields(self.fields, FILE_KINDS, ("image", "mask", "label"), "Paired", "('map', 'depth/*.png')")
        object.__setattr__(self, "fields", fields)
        if self.classes and self.mask is None:
            raise RecipeError("Paired: classes name the numbers of the mask; there is no mask")
        if (self.numbers or self.palette or self.void is not None) and self.mask is None:
            raise RecipeError("Paired: numbers, palette and void are about the mask; there is no mask")

        def is_number(value: Any, most: int = 65535) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most

        def is_stored(key: Any) -> bool:
            return key is None or is_number(key)

        def is_color(key: Any) -> bool:
            return isinstance(key, tuple) and len(key) == 3 and all(is_number(part, 255) for part in key)

        for option, is_key in ((self.numbers, is_stored), (self.palette, is_color)):
            if not isinstance(option, Mapping) or not all(is_key(key) and is_number(n) for key, n in option.items()):
                rule = "Paired: numbers={0: 255, 1: 0} and palette={(128, 64, 128): 3} map to class numbers"
                raise RecipeError(f"{rule}; got {option!r:.200}")
        if self.void is not None and not is_number(self.void):
            raise RecipeError(f"Paired: void is a class number from 0 to 65535; got {self.void!r}")
        check_common(self, image)
        if not self._others():
            raise RecipeError("Paired: expected a mask or fields beside the image; images without them are a Folder")
        for name, pattern in self._others().items():
            if pattern == image:
                rule = f"Paired: the patterns of image and {name} are one, {image.text!r}"
                raise RecipeError(f"{rule}; each image would be its own {name}")
        check_placeholders("Paired", image, self._others())

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field: those with a file, then the label."""
        kinds: dict[str, Kind] = {"image": "image"}
        kinds |= {} if self.mask is None else {"mask": "mask"}
        kinds |= {name: kind for name, (kind, _) in self.fields.items()}
        return kinds | ({"label": "label"} if "label" in compile_pattern(self.image, "Paired: image").holes else {})

    def decoders(self) -> dict[str, FieldDecoder]:
        """The decoders of masks with other numbers or colors, and of images that do not become 8-bit RGB."""
        decoders = pixel_decoders(self.pixels)
        if self.numbers or self.palette:
            decoders["mask"] = MappedMask("mask", tuple(self.numbers.items()), tuple(self.palette.items()))
        return decoders

    def voids(self) -> dict[str, int]:
        """The number of void pixels in the mask."""
        return {} if self.void is None else {"mask": self.void}

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`. SourceError if no image at all has its mask."""
        image, kinds = compile_pattern(self.image, "Paired: image"), self.kinds()
        files = tuple(name for name, kind in kinds.items() if kind != "label")
        classes = {"mask": self.classes} if self.classes else {}
        if "label" in kinds:
            classes["label"] = class_names(root, image, self._others().values())
        rows = partial(self._rows, root, classes.get("label"))
        return listing_of(self, files, ("label",) if "label" in kinds else (), classes, rows)

    def _others(self) -> dict[str, Pattern]:
        """The patterns of all fields but the image, in the order of the listing's files."""
        texts = {} if self.mask is None else {"mask": self.mask}
        texts |= {name: text for name, (_, text) in self.fields.items()}
        return {name: compile_pattern(text, f"Paired: {name}") for name, text in texts.items()}

    def _rows(self, root: Path, classes: tuple[str, ...] | None, tally: Counter[str]) -> Iterator[Row]:
        pattern, others = compile_pattern(self.image, "Paired: image"), self._others()
        companions, first, count = Companions(root), None, 0
        listed = listed_images(root, pattern, splits=self.splits, classes=classes, tally=tally, rivals=others.values())
        for image in listed:
            count, first, files = count + 1, first or image, [image.path]
            for name, other in others.items():
                path, is_there = companions.find(other, image.holes)
                files.append(path)
                if not is_there:
                    tally[f"image without its {name}"] += 1
            group = dicom_group(self.splits, root, image.path)
            yield Entry(key_of(image.path), image.split, tuple(files), image.values), group
        for name, other in others.items():
            if first is not None and tally[f"image without its {name}"] == count:
                path, other_file = companions.find(other, first.holes)[0], next(walk(root, other, Counter()), None)
                seen = f"no file fits {other.text!r}"
                if other_file is not None:
                    seen = f"the first file of {other.text!r} is {other_file[0]!r}"
                raise SourceError(f"{root}: no image has its {name}: {first.path!r} should have {path!r}, and {seen}")
            if pattern.holes <= other.holes:  # the placeholders of a file say which image would be its own
                own = fitting(root, other, [pattern], Counter())
                orphans = sum(not companions.find(pattern, holes)[1] for _, holes in own)
                tally.update({f"{name} without its image": orphans} if orphans else {})

    __repr__ = constructor_text


@dataclass(frozen=True)
class MappedMask:
    """Makes class numbers, uint8 or uint16 [H, W], of the numbers or of the colors in a mask's file.

    Attributes:
        field: The field.
        numbers: Pairs of a number in the file and a class number; `None` in the place of a number stands for all others.
        palette: Pairs of a color (red, green, blue) and a class number, or a number in the file that `numbers` maps.
    """

    field: str
    numbers: tuple[tuple[int | None, int], ...] = ()
    palette: tuple[tuple[tuple[int, int, int], int], ...] = ()

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        return images.image_size(raw[self.field])

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Array:
        data, numbers = raw[self.field], dict(self.numbers)
        if not self.palette:
            stored = images.decode_mask(data)
        elif images.is_jpeg(data):
            raise SampleError("a mask of colors is stored without loss, this one is a JPEG: its colors are not exact")
        else:
            known: dict[int | None, int] = {int(np.array(color) @ _CODE): number for color, number in self.palette}
            rule = f"is not in the palette of {len(known)} colors"
            codes = images.decode_image(data, background=None).astype(np.int64) @ _CODE
            stored = _renumbered(codes, known, lambda c: f"the color {(c >> 16, c >> 8 & 255, c & 255)} {rule}")
        if not numbers:
            return stored
        rule = f"in the mask is not one of the {len(numbers)} numbers that have a class"
        return _renumbered(stored, numbers, lambda number: f"the number {number} {rule}")


def _renumbered(stored: Array, numbers: Mapping[int | None, int], fault: Callable[[int], str]) -> Array:
    """The class number of each number [H, W], uint8 or uint16 by the highest that is possible; that of None is for others."""
    present, places = np.unique(stored, return_inverse=True)
    found = [numbers.get(number, numbers.get(None)) for number in present.tolist()]
    if None in found:
        raise SampleError(fault(int(present[found.index(None)])))
    dtype = np.uint8 if max(numbers.values()) <= 255 else np.uint16
    return np.asarray(np.array(found, dtype)[places.reshape(stored.shape)])


_CODE = np.array([1 << 16, 1 << 8, 1])


CITYSCAPES_CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain", "sky",
    "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The `id` of each of these classes in `labelIds.png`
(https://github.com/mcordts/cityscapesScripts/blob/master/cityscapesscripts/helpers/labels.py)."""

CAMVID_CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist", "void",
)  # fmt: skip
_IGNORED = 255


def cityscapes(annotations: str = "gtFine", splits: Splits = ("train", "val")) -> Paired:
    """Return the source of Cityscapes: 19 classes by their train ids, and 255 for what its benchmark ignores.

    The root holds `leftImg8bit/{split}/{city}/*_leftImg8bit.png` and `gtFine/{split}/{city}/*_gtFine_labelIds.png`.

    Args:
        annotations: "gtFine" or "gtCoarse".
        splits: The splits to take; the masks of "test" are not public.
    """
    numbers: dict[int | None, int] = {number: train_id for train_id, number in enumerate(_CITYSCAPES_IDS)}
    return Paired(
        image="leftImg8bit/{split}/{city}/*_leftImg8bit.png",
        mask=f"{annotations}/{{split}}/{{city}}/*_{annotations}_labelIds.png",
        classes=CITYSCAPES_CLASSES,
        numbers={**numbers, None: _IGNORED},
        void=_IGNORED,
        splits=splits,
    )
