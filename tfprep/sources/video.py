"""Videos: every Nth frame, read by PyAV (FFmpeg).

A frame has no place of its own in its file, and takes those before it to decode. So the frames that are taken are copied once
(`tfprep.sources.raw.staged`), as PNG, which loses nothing.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfprep.errors import MissingDependencyError, RecipeError, SampleError
from tfprep.fields import Array, Kind
from tfprep.images.pillow import check_pixels
from tfprep.optional import require_package
from tfprep.sources.folder import Splits, check_common, class_names, listed_images
from tfprep.sources.patterns import Pattern, compile_pattern
from tfprep.sources.raw import Reference, read_raw, staged_files
from tfprep.sources.source import Entry, Listing, constructor_text, key_of
from tfprep.sources.splits import Fractions, Row, listing_of

_FORMATS = {
    **dict.fromkeys((".mp4", ".m4v", ".mov"), "mov"),
    **dict.fromkeys((".mkv", ".webm"), "matroska"),
    ".avi": "avi",
    **dict.fromkeys((".mpg", ".mpeg"), "mpeg"),
}
"""FFmpeg's readers, by suffix. Left to itself it would also read playlists, which name other files and addresses."""
VIDEO_SUFFIXES = tuple(_FORMATS)
_LAST_FRAME_S = 0.5
"""The longest time that the last frame may be shown: 2 frames a second are the slowest video that is usual."""
_COMPRESSION = 1
"""Of PNG: a frame is written and read once or a few times, and is larger by a fifth than with the default."""


@dataclass(frozen=True, repr=False)
class Video:
    """Frames of videos. Fields: `image`, and `label` if the pattern has `{label}`.

    All frames of a file are in one split, unless `Fractions(group_by=...)` says otherwise. Frames are shown as the file says.
    What cannot be decoded is rejected, and so is the end of a file that was cut short; the frames before it are kept.

    Attributes:
        videos: A pattern as `tfprep.sources.patterns` describes, with the suffix of a video: `{split}/{label}/*.mp4`.
        every: Take every Nth frame, from the first.
        splits: As in `Folder`.
        classes: As in `Folder`.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    videos: str
    every: int
    splits: Splits = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        pattern = self._pattern()
        if pattern.suffix not in VIDEO_SUFFIXES:
            raise RecipeError(f"Video: expected videos to end in {', '.join(VIDEO_SUFFIXES)}; got {self.videos!r}")
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise RecipeError(f"Video: every is a number of frames from 1; got {self.every!r}")
        if isinstance(self.splits, Fractions) and self.splits.stratify is not None:
            raise RecipeError("Video: the frames of a file stay together, so that splits cannot be stratified")
        check_common(self, pattern)

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        label: dict[str, Kind] = {"label": "label"} if "label" in self._pattern().holes else {}
        return {"image": "image", **label}

    def scan(self, root: Path) -> Listing:
        """List the frames of the videos below `root`; see `Source.scan`. Raises MissingDependencyError without PyAV 17."""
        require_package("av", "Video")
        classes: dict[str, tuple[str, ...]] = {}
        if "label" in self.kinds():
            classes["label"] = self.classes or class_names(root, self._pattern())
        splits = self.splits
        if isinstance(splits, Fractions) and splits.group_by is None:
            splits = replace(splits, group_by=lambda key: key.rpartition("/")[0])  # the file
        rows = partial(self._rows, root, classes.get("label"))
        return listing_of(self, ("image",), tuple(classes), classes, rows, splits)

    def _pattern(self) -> Pattern:
        return compile_pattern(self.videos, "Video: videos")

    def _rows(self, root: Path, classes: tuple[str, ...] | None, tally: Counter[str]) -> Iterator[Row]:
        import av

        if int(av.__version__.partition(".")[0]) < 17:  # it takes BT.709, the colors of HD, for BT.601
            raise MissingDependencyError(f"Video needs PyAV 17, not {av.__version__}: pip install -U 'tfprep[video]'")
        for video in listed_images(root, self._pattern(), splits=self.splits, classes=classes, tally=tally):
            path = video.path
            maker = f"2 {av.__version__}"  # raised when other pixels are taken from the same file
            copy, starts, lengths = staged_files(root / path, f".{self.every}.parts", self._parts, maker)
            *frames, note = zip(starts.tolist(), lengths.tolist(), strict=True)
            found = {
                at * self.every: Reference(str(copy), start, size, member=f"frame {at * self.every} of {path}")
                for at, (start, size) in enumerate(frames)
            }
            if fault := json.loads(read_raw(root, str(Reference(str(copy), *note)))):
                number, reason = fault
                found[number] = Reference(path, member=f"frame {number} ({reason})", missing=True)
            for number, reference in found.items():
                yield Entry(f"{key_of(path)}/{number:06}", video.split, (str(reference),), video.values), None

    def _parts(self, path: Path) -> Iterator[bytes]:
        """Yield each frame that is taken as PNG, and then, as JSON, the number of a damaged frame and the reason, or null."""
        number, fault = 0, None
        try:
            for frame in _decoded(path):
                if number % self.every == 0:
                    png = io.BytesIO()
                    Image.fromarray(np.ascontiguousarray(_pixels(frame))).save(png, "PNG", compress_level=_COMPRESSION)
                    yield png.getvalue()
                number += 1
            if not number:
                raise SampleError("the video has no frames")
        except SampleError as error:
            fault = (number, error.reason)
        yield json.dumps(fault).encode()

    __repr__ = constructor_text


def _decoded(path: Path) -> Iterator[Any]:
    import av

    options: Any = {"format": _FORMATS[path.suffix.lower()]}
    if int(av.__version__.partition(".")[0]) < 19:  # from then on, text of metadata that is not UTF-8 is never an error
        options["metadata_errors"] = "replace"
    try:
        with path.open("rb") as file, av.open(file, "r", **options) as video:
            if not video.streams.video:
                raise SampleError("the file has no video")
            stream = video.streams.video[0]
            stream.thread_type = "AUTO"
            last = None
            for frame in video.decode(stream):
                last = frame.time if frame.time is not None else last
                yield frame
            # FFmpeg takes the end of a file for the end of the video.
            text, duration = stream.metadata.get("DURATION"), 0.0
            if stream.duration is not None:
                duration = float(stream.duration * stream.time_base)
            elif text:  # Matroska's H:M:S
                duration = sum(float(part) * 60**power for power, part in enumerate(reversed(text.split(":"))))
            if last is not None and last + _LAST_FRAME_S < duration:
                rule = f"the last frame is at {last:.2f} s, and the video lasts {duration:.2f} s"
                raise SampleError(f"{rule}; it may be cut short")
    except (av.FFmpegError, ValueError, ArithmeticError, LookupError) as error:
        raise SampleError(f"FFmpeg cannot decode it: {getattr(error, 'strerror', None) or error}") from error


def _pixels(frame: Any) -> Array:
    check_pixels(frame.height, frame.width, 3)
    parts = frame.format.components
    if len(parts) == 1 and parts[0].bits > 8:
        raise SampleError(f"gray of {parts[0].bits} bits a pixel; save the frames as PNG or TIFF, for sources.Pixels()")
    pixels: Array = frame.to_ndarray(format="rgb24")
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return pixels
    # What is shown at a x + c y, b x + d y, in 1/65536: cameras turn and mirror (ISO/IEC 14496-12, 6.2.2).
    a, b, _, c, d = (value if abs(value) > 655 else 0 for value in np.frombuffer(bytes(matrix), np.int32)[:5].tolist())
    if bool(a and d) == bool(b and c) or a * b or c * d:
        raise SampleError(f"the video is turned by {frame.rotation} degrees, which is not a multiple of 90")
    upright = pixels if a else pixels.swapaxes(0, 1)
    return upright[:: 1 if (b or d) > 0 else -1, :: 1 if (a or c) > 0 else -1]
