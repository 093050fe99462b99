"""The recipe file that `tfprep init` writes for a folder. It builds as it is, and is meant to be edited."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfprep.dataset.dataset import open_dataset
from tfprep.dataset.names import BESIDE, MANIFEST, POINTER, is_training_split
from tfprep.dataset.records_source import Records
from tfprep.errors import DatasetError, SourceError
from tfprep.fields import RASTER_KINDS, Kind
from tfprep.sources.detection.detect import MOST_LISTED, NotRecognized, Reading, detect, listed_files, look, patterns_of
from tfprep.units import printable

_STORE: Mapping[Kind, str] = {
    "image": "codecs.Jpeg(95)",
    "mask": "codecs.Zstd()",
    "map": "codecs.Zstd()",
    "label": "codecs.Scalar()",
    "scalar": "codecs.Scalar()",
    "boxes": "codecs.Scalar()",
    "points": "codecs.Scalar()",
    "text": "codecs.Text()",
}
_BOX_SIDE = 640
"""Side of the images for detectors, to which they are resized and padded: that of YOLO and RetinaNet."""
_SIZES = (224, 160, 128, 96, 64, 32)


def recognized(folder: Path, layout: str | None = None, ignore: Sequence[str] = ()) -> Reading:
    """Return the source that fits a folder of raw data, or a dataset.

    Args:
        folder: The folder.
        layout: The layout to take; None for the only one that fits.
        ignore: Patterns of files to leave out, as `tfprep.sources.detection.detect.detect` takes them.

    Raises:
        SourceError: No source fits, or several do. The message holds the recipes that come nearest.
    """
    is_dataset = any((folder / name).exists() for name in (POINTER, MANIFEST, f"{BESIDE}/{POINTER}"))
    if layout is not None or not is_dataset:
        try:
            return detect(folder, layout, ignore)
        except NotRecognized as error:
            raise SourceError(
                "\n\n".join([str(error), *(_reading(reading, folder, ignore) for reading in error.readings)])
            ) from error
    try:
        data = open_dataset(folder)
    except DatasetError as error:
        raise SourceError(f"{error}. To read the raw files beside it: --as LAYOUT") from error
    specs = {name: info.spec for name, info in data.manifest.fields.items()}  # without those that a model added
    lists = [name for name, spec in specs.items() if spec.kind == "text" and spec.shape]
    checks = [f"{name} is a list of texts, which this recipe does not read" for name in lists]
    records = Records({name: spec.kind for name, spec in specs.items() if name not in lists})
    return Reading("dataset", records, remarks=[(0, check) for check in checks], facts=look(records, folder))


def _reading(reading: Reading, folder: Path, ignore: Sequence[str]) -> str:
    """Return one of the sources that come nearest: the command that takes it, if there is one, and its recipe."""
    left = [pattern.replace("[", "[[]") for pattern in patterns_of(reading.left)]
    patterns = (*ignore, *(left if len(left) <= MOST_LISTED else ()))
    options = "".join(f" --ignore {shlex.quote(pattern)}" for pattern in patterns)
    command = f"tfprep init {shlex.quote(str(folder))} --as {reading.layout}{options}"
    try:
        works = detect(folder, reading.layout, patterns).source == reading.source
    except SourceError:
        works = False
    bare = ", with no labels or masks" * ({*reading.facts.kinds} == {"image"})
    unread = f", without {listed_files(reading.left)}" if reading.left else ""
    how = f"{command}\nor this recipe:" if works else "This recipe:"
    path = Path("recipe.py")
    return f"To read it as {reading.layout}{bare}{unread}:\n{how}\n\n{recipe_text(reading, folder, path)}"


def recipe_text(detected: Reading, folder: Path, path: Path) -> str:
    """Return the text of a recipe file.

    Args:
        detected: What `sources.detect` found in the folder.
        folder: The folder of raw data.
        path: Where the file will be written; paths inside it are relative to this.
    """
    name, facts = dataset_name(folder), detected.facts
    masks = [field for field, kind in facts.kinds.items() if kind == "mask"]
    store = {field: _STORE[kind] for field, kind in facts.kinds.items()}
    if facts.deep:  # JPEG holds 8 bits
        store |= {field: "codecs.Zstd()" for field, kind in facts.kinds.items() if kind == "image"}
    geometry = ", ".join(_geometry(detected))
    options = [f"name={name!r},", f"source={detected.source!r},", f"geometry=[{geometry}],"]
    if "points" in facts.kinds.values():
        flips = "flip_indices={'points': (0, 2, 1, ...)}"
        options.append(f"# augment.Flip(p=0.5) needs {flips}: the row that takes the place of each row")
    voids: dict[str, int] = getattr(detected.source, "voids", dict)()
    for field in masks:  # 255 is void beside the classes 1, 2, ..., and a class beside 0 only or shades of gray
        numbers = facts.mask_numbers.get(field, ())
        if "pad=True" in geometry or (255 in numbers and any(0 < number < 64 for number in numbers)):
            voids.setdefault(field, 255)
    options += [f"fill={voids!r},"] if voids else []
    training = [split for split in facts.splits if is_training_split(split)][:1]
    options += ["color=[augment.Brightness(0.2), augment.Contrast(0.2)],"] if training and not facts.deep else []
    if "instances" in masks:
        clicks = "'clicks': derive.Clicks(mask='object', target=1, void=255)"
        options.append(f"# derive={{'object': derive.OneInstance(void=255), {clicks}}},")
    elif masks:
        distance = f"derive.Distance(mask={masks[0]!r}, target=1)"
        options.append(f"# derive={{'distance': {distance}}},  # then name it in store as well")
    options += [f"variants={{{split!r}: 2}}," for split in training]
    options += [f"store={{{', '.join(f'{field!r}: {codec}' for field, codec in store.items())}}},", "seed=0,"]
    modules = "augment, codecs, derive" if masks else "augment, codecs"
    modules += "\nfrom tfprep.dataset import Records" if isinstance(detected.source, Records) else ", sources"
    return _TEMPLATE.format(
        facts=printable("\n".join(detected.lines())).replace('"""', "'''").replace("\\", "/"),
        file=printable(shlex.quote(path.name)),
        modules=modules,
        data=_double_quoted(repr(os.path.relpath(folder, path.parent.resolve()))),  # `..` of a link is not where it is
        name=name,
        options=_double_quoted("\n".join(f"    {option}" for option in options)),
    )


def dataset_name(folder: Path) -> str:
    """Return the folder's name as the name of a dataset: a letter, then letters, digits and underscores.

    A folder `out/NAME` gets another name: the dataset built from it does not fit into it.
    """
    name = re.sub(r"\W+", "_", folder.resolve().name, flags=re.ASCII).strip("_").lower()
    name = name if re.match(r"[a-z]", name) else f"data_{name}".rstrip("_")
    name = re.sub(r"_v(\d+)$", r"_version\1", name)
    return f"{name}_new" if Path("out", name).resolve() == folder.resolve() else name


def _double_quoted(code: str) -> str:
    """The code with double quotes, as formatters write it, unless it already holds some."""
    return code if '"' in code or "\\'" in code else code.replace("'", '"')


def _geometry(detected: Reading) -> list[str]:
    """Ops that give all samples one size, so that they stack into batches. With masks, images of one size are kept whole."""
    kinds = set(detected.facts.kinds.values())
    sizes = detected.facts.sizes
    if not kinds & RASTER_KINDS or not sizes:
        return []
    of_most = sorted(map(min, sizes))[len(sizes) // 20]  # at least 19 of 20 images are that large
    side = next((size for size in _SIZES if size <= of_most), _SIZES[-1])
    if "boxes" in kinds:
        flip = [] if "points" in kinds else ["augment.Flip(p=0.5)"]
        return [f"augment.Resize({_BOX_SIDE}, {_BOX_SIDE}, pad=True)", *flip]
    if kinds & {"mask", "map", "points"}:
        return ["augment.Flip(p=0.5)"] if len(set(sizes)) == 1 else [
            f"augment.Resize(shorter={side})", f"augment.Crop({side}, {side})", "augment.Flip(p=0.5)"
        ]  # fmt: skip
    return [f"augment.RandomResizedCrop({side}, {side})", "augment.Flip(p=0.5)"]


_TEMPLATE = '''"""{facts}

Build: tfprep build {file} --out out/{name}
Look:  tfprep show out/{name}
"""

from tfprep import Recipe, {modules}

DATA = {data}  # relative to this file; --data overrides it

RECIPE = Recipe(
{options}
)
'''
