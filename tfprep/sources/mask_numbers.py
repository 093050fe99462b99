"""Masks whose files hold other numbers than the classes', or colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfprep import images
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, Size


@dataclass(frozen=True)
class MappedMask:
    """Makes class numbers, uint8 or uint16 [H, W], of the numbers or of the colours in a mask's file.

    Attributes:
        field: The field.
        numbers: Pairs of a number in the file and a class number; `None` in the place of a number stands for all others.
        palette: Pairs of a colour (red, green, blue) and a class number, or a number in the file that `numbers` maps.
    """

    field: str
    numbers: tuple[tuple[int | None, int], ...] = ()
    palette: tuple[tuple[tuple[int, int, int], int], ...] = ()

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        return images.image_size(raw[self.field])

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Array:
        stored = self._colours(raw[self.field]) if self.palette else images.decode_mask(raw[self.field])
        return self._mapped(stored) if self.numbers else stored

    def _colours(self, data: bytes) -> Array:
        if images.is_jpeg(data):
            raise SampleError("a mask of colours is stored without loss, this one is a JPEG: its colours are not exact")
        codes = images.decode_image(data).astype(np.int64) @ _CODE
        known = {int(np.array(colour) @ _CODE): number for colour, number in self.palette}
        present, places = np.unique(codes, return_inverse=True)
        strange = [code for code in present.tolist() if code not in known]
        if strange:
            colour = tuple(strange[0] >> shift & 255 for shift in (16, 8, 0))
            raise SampleError(f"the colour {colour} is not in the palette of {len(known)} colours")
        table = _narrow([known[code] for code in present.tolist()], known.values())
        return np.asarray(table[places.reshape(codes.shape)])

    def _mapped(self, stored: Array) -> Array:
        table = dict(self.numbers)
        present, places = np.unique(stored, return_inverse=True)
        strange = [number for number in present.tolist() if number not in table and None not in table]
        if strange:
            raise SampleError(
                f"the number {strange[0]} in the mask is not one of the {len(table)} numbers that have a class"
            )
        mapped = [table.get(number, table.get(None)) for number in present.tolist()]
        return np.asarray(_narrow(mapped, table.values())[places.reshape(stored.shape)])


_CODE = np.array([1 << 16, 1 << 8, 1])


def _narrow(numbers: Any, possible: Any) -> Array:
    """The numbers in the dtype that holds all possible ones, so that all masks of a dataset have one dtype."""
    return np.array(numbers, np.uint8 if max(possible) <= 255 else np.uint16)


def check_numbers(numbers: Any, palette: Any, where: str) -> None:
    """Raise RecipeError unless these are mappings from numbers and from colours to class numbers."""
    for option, value, fits in (("numbers", numbers, _is_number_or_none), ("palette", palette, _is_colour)):
        if not isinstance(value, Mapping) or not all(fits(key) and _is_number(number) for key, number in value.items()):
            example = "{0: 255, 1: 0}" if option == "numbers" else "{(128, 64, 128): 3}"
            raise RecipeError(
                f"{where}: expected {option} to map to class numbers, such as {example}; got {value!r:.200}"
            )


def _is_number_or_none(key: Any) -> bool:
    return key is None or _is_number(key)


def _is_colour(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 3 and all(_is_number(part, 255) for part in key)


def _is_number(value: Any, most: int = 65535) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
