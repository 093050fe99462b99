"""Recognises images with masks, class folders, and images alone, by the names of folders and files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tfprep.errors import SourceError
from tfprep.sources.detection import BY_CLASS, FRACTIONS, Found, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import Inventory, below
from tfprep.sources.detection.pairs import IMAGE_WORD, MASK_WORD, SPLIT_NAMES, jpeg_masks, mask_patterns, split_pattern
from tfprep.sources.folder import Folder, read_labels
from tfprep.sources.paired import Paired
from tfprep.sources.patterns import compile_pattern, literal, plain


def pairs(tree: Inventory) -> Found:
    """Yield the sources of images with masks, those with the most images first, and refuse masks in JPEG."""
    for image, mask in mask_patterns(tree.names):
        source, doubts = Paired(image=image, mask=mask, splits=None if "{split}" in image else FRACTIONS), list[str]()
        if "{split}" in image:
            named = {part for folder in tree.names for part in folder.split("/") if part.lower() in SPLIT_NAMES}
            paths = [below(folder, name) for folder, names in tree.names.items() for name in names]
            compiled = [compile_pattern(pattern, "detect") for pattern in (mask, image)]
            with_masks, splits = (
                {holes["split"] for holes in map(one.match_path, paths) if holes} & named for one in compiled
            )
            both, without = sorted(splits & with_masks), sorted(splits - with_masks)
            source = replace(source, splits=tuple(both) if without else None)
            doubts += [f"{', '.join(without)} has no masks, and is left out"] if without else []
            if without and len(both) == 1:
                way_out = "splits=sources.Fractions(...) with that name in the patterns draws others"
                doubts.append(f"all samples are in {both[0]!r}; {way_out}")
        yield LayoutGuess("masks", source, f"images {image} with masks {mask}", tuple(doubts))
    for image, mask in jpeg_masks(tree.names):
        rule = f"{tree.root}: {mask}/ holds JPEG files beside {image}/; JPEG does not keep class numbers, so they are no masks"
        yield Refusal("masks", SourceError(f"{rule}. Write the masks as PNG from where they come"))


def _classes_in_names(tree: Inventory) -> tuple[str, ...]:
    """The doubt that file names such as `cat.0.jpg` and `dog.0.jpg` say the class; none where no folder is like that."""
    for words in tree.words.values():
        if 1 < len(words) <= words.total() / 2:
            few = f"{len(words)} words ({', '.join(sorted(words)[:3])}{', ...' if len(words) > 3 else ''})"
            return (
                f"the file names begin with {few}, which may be classes; this recipe has no label: move the files into a folder "
                "for each class, or name the classes in a table",
            )
    return ()


def folders(tree: Inventory) -> Found:
    """Yield class folders or images alone; refuse folders whose names say that they are no classes."""
    prefix, inner_folders = "", sorted(tree.images)
    heads = {folder.split("/")[0] for folder in inner_folders}
    while len(heads) == 1 and "" not in heads and not {head.lower() for head in heads} & SPLIT_NAMES:
        (head,) = heads  # a folder that holds everything
        prefix, inner_folders = f"{prefix}{head}/", [folder[len(head) + 1 :] for folder in inner_folders]
        heads = {folder.split("/")[0] for folder in inner_folders}
    prefix = literal(prefix)
    heads -= {""}
    splits = {head for head in heads if head.lower() in SPLIT_NAMES}
    inner = [folder.split("/")[1].lower() if "/" in folder else "" for folder in inner_folders]
    if splits and "" not in inner_folders and (splits == heads or len(splits) > 1):
        yield from _of_splits(tree, prefix, inner_folders, splits, None if splits == heads else tuple(sorted(splits)))
    elif len(heads) > 1 and set(inner) <= SPLIT_NAMES:
        source, said = Folder(image=f"{prefix}{{label}}/{{split}}/**"), "split folders below class folders"
        checked = _checked(tree, LayoutGuess("folders", source, said), heads, prefix)
        yield checked if isinstance(checked, Refusal) else checked._replace(doubts=())
    elif len(heads) > 1:
        source = Folder(image=f"{prefix}{{label}}/**", splits=BY_CLASS)
        yield _checked(tree, LayoutGuess("folders", source, "class folders"), heads, prefix)
    for folder, names in tree.names.items():
        masks = [name for name in names if re.fullmatch(rf".+[_-]{MASK_WORD.pattern}\.\w+", name, re.IGNORECASE)]
        if 3 * len(masks) >= len(names):
            rule = f"{tree.root}: files such as {folder}/{masks[0]} are called like masks"
            yield Refusal("masks", SourceError(f"{rule}, and nothing says which images they belong to"))
            break
    doubts = _classes_in_names(tree)
    yield LayoutGuess("images", Folder(image=f"{prefix}**", splits=FRACTIONS), "images without classes", doubts)


def _of_splits(
    tree: Inventory, prefix: str, folders: Sequence[str], splits: set[str], taken: tuple[str, ...] | None
) -> Found:
    classes = {split: set[str]() for split in splits}
    for folder in folders:
        head, _, rest = folder.partition("/")
        if head in splits and rest:
            classes[head].add(rest.split("/")[0])
    found = set().union(*classes.values())
    if len(found) > 1:
        training = next((split for split in sorted(splits) if split.lower().startswith("train")), None)
        known = found if training is None else classes[training]
        strange = {split: names - known for split, names in classes.items() if names - known}
        listed, doubts = dict[str, str](), list[str]()
        for split, names in sorted(classes.items()) if training is not None else ():
            alone = len(strange.get(split, ())) == 1
            if names and not alone:
                continue
            if (labels := _list_of_labels(tree, prefix, split, known)) is not None:
                listed[split] = labels
                strange.pop(split, None)
            elif alone and split.lower().startswith("test"):
                doubts.append(f"the folder {min(strange.pop(split))} in {split}/ is no class; the split is left out")
                taken = tuple(one for one in taken or sorted(splits) if one != split)
        source = Folder(image=f"{prefix}{{split}}/{{label}}/**", splits=taken, labels=listed)
        for split, names in strange.items():
            rule = f"{tree.root}: {split}/ has the folders {', '.join(sorted(names)[:3])}, which are no classes of {training}/"
            way_out = "give every split the same class folders, or write the recipe by hand"
            yield Refusal("folders", SourceError(f"{rule}; {way_out}"))
        read = [names for split, names in classes.items() if split not in listed and (not taken or split in taken)]
        guess = LayoutGuess("folders", source, "class folders below split folders", tuple(doubts))
        yield _checked(tree, guess, set().union(*read))
    alone_there = (
        (f"the only folder below the splits is {next(iter(found))}, which is no class",) if len(found) == 1 else ()
    )
    said = (*alone_there, *_classes_in_names(tree))
    yield LayoutGuess("images", Folder(image=f"{prefix}{{split}}/**", splits=taken), "split folders", said)


def _list_of_labels(tree: Inventory, prefix: str, split: str, classes: set[str]) -> str | None:
    """The text file with a class for nine in ten of the split's first images, as in ImageNet and tiny-imagenet; None without."""
    top = plain(f"{prefix}{split}")
    images = [name for folder, names in tree.names.items() if f"{folder}/".startswith(f"{top}/") for name in names]
    for path in tree.files(".txt", ".csv") if images else ():
        if split.lower() in path.lower():
            with suppress(SourceError):
                labels = read_labels(tree.root, path, sorted(images))
                if 10 * sum(labels.get(os.path.splitext(name)[0]) in classes for name in images) >= 9 * len(images):
                    return path
    return None


def _checked(tree: Inventory, guess: LayoutGuess, names: set[str], prefix: str = "") -> LayoutGuess | Refusal:
    """Refuse class folders whose names, or the names of folders in them, say that they are no classes; say what is doubtful."""
    starts = [f"{plain(prefix)}{name}/" for name in names]  # of class folders; the names of folders in them with images
    inside = {f[len(start) :].split("/")[0] for start in starts for f in tree.images if f.startswith(start)}
    for of_kind, what in ((names, "not like classes"), (inside, "below what would be the classes")):
        images = sorted(name for name in of_kind if IMAGE_WORD.fullmatch(_last_word(name)))
        masks = sorted(name for name in of_kind if _NO_IMAGE.fullmatch(_last_word(name)))
        if (images and masks) or (of_kind and len(of_kind) in (len(images), len(masks))):
            said = " and ".join(f"{name}/" for name in (*images, *masks))
            rule = f"{tree.root}: {said} are called like folders of images and masks, {what}"
            return Refusal("masks", SourceError(f"{rule}, but nothing says how they belong together"))
    alike = Counter(pattern for name in names if "{split}" in (pattern := split_pattern(name)) and pattern != "{split}")
    of_split = (name for name in sorted(names) if _OF_SPLIT.fullmatch(name) or alike[split_pattern(name)] > 1)
    if split := next(of_split, None):
        rule = f"{tree.root}: {split}/ is called like a part of the data, not like a class"
        way_out = "write the recipe by hand, or rename the folders to train, val and the like"
        return Refusal("folders", SourceError(f"{rule}; {way_out}"))
    doubts = list(guess.doubts)
    one, other = [plain(f"{prefix}{name}") for name in sorted(names)[:2]] if len(names) == 2 else ("", "")
    stems, others = ({os.path.splitext(file)[0] for file in tree.names.get(folder, ())} for folder in (one, other))
    if one and 2 * len(stems & others) > max(len(stems), len(others)):
        said = f"{one}/ and {other}/ hold files of the same names"
        doubts.append(f"{said}: are these classes, or images and what belongs to them?")
    if inside:
        few = ", ".join(sorted(inside)[:3])
        doubts.append(f"the classes are {', '.join(sorted(names)[:3])}, and the folders in them ({few}) are not")
    return guess._replace(doubts=tuple(doubts))


_NO_IMAGE = re.compile(
    rf"{MASK_WORD.pattern}|depths?|disparit(?:y|ies)|normals?|flows?|alphas?|mattes?|[hl]r", re.IGNORECASE
)
"""Folders of what belongs to images, pixel by pixel: also those of super-resolution (HR, LR)."""
_OF_SPLIT = re.compile(r"(?:train|test|val|valid)(?:[ _-]?[A-Z0-9])|(?:fold|split|part)[ _-]?\d+", re.IGNORECASE)
"""Folders such as trainA, test_1 and fold3."""


def _last_word(name: str) -> str:
    """`GroundTruth` of `ISIC_GroundTruth`, `image` of `image_2`: folders of many data sets have their name in front."""
    plain = re.sub(r"(?<=[a-z])[ _-]?\d+$", "", name)
    whole = _NO_IMAGE.fullmatch(plain) or IMAGE_WORD.fullmatch(plain)
    return plain if whole else re.split(r"[ _-]", plain)[-1]
