"""Class folders, folders of splits, and images alone: which folders are classes, and which names say that they are none."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from tfprep.errors import SourceError
from tfprep.sources.detection import BY_CLASS, FRACTIONS, Answers, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import Inventory, below
from tfprep.sources.detection.pairs import (
    IMAGE_WORD,
    MASK_WORD,
    NO_IMAGE,
    OF_ONE,
    SPLIT_WORD,
    is_mask_folder,
    is_split,
    split_pattern,
)
from tfprep.sources.folder import Folder, read_labels
from tfprep.sources.patterns import literal, plain


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


def folders(tree: Inventory) -> Answers:
    """Yield class folders or images alone; refuse folders whose names say that they are no classes."""
    prefix, inner_folders = "", sorted(tree.images)
    heads = {folder.split("/")[0] for folder in inner_folders}
    while len(heads) == 1 and "" not in heads and not any(map(is_split, heads)):
        (head,) = heads  # a folder that holds everything
        prefix, inner_folders = f"{prefix}{head}/", [folder[len(head) + 1 :] for folder in inner_folders]
        heads = {folder.split("/")[0] for folder in inner_folders}
    prefix = literal(prefix)
    heads -= {""}
    form, splits = _split_folders(heads, inner_folders)
    of_all = re.escape(form.partition("{split}")[0])  # `seg_` of seg_train is no word for masks
    for folder in (
        head for head in sorted(heads - splits.keys()) if splits and is_mask_folder(re.sub(f"^{of_all}", "", head))
    ):
        rule = (
            f"{tree.root}: {plain(prefix)}{folder}/ is called like masks, and nothing says which images they belong to"
        )
        yield Refusal("masks", SourceError(rule))
    yield from _not_alone(tree)
    inner = [folder.split("/")[1] if "/" in folder else "" for folder in inner_folders]
    if splits and "" not in inner_folders and (splits.keys() == heads or len(splits) > 1):
        yield from _of_splits(tree, prefix, form, inner_folders, splits, splits.keys() == heads)
    elif len(heads) > 1 and all(map(is_split, inner)):
        source, layout = Folder(image=f"{prefix}{{label}}/{{split}}/**"), "split folders below class folders"
        checked = _checked(tree, LayoutGuess("folders", source, layout), heads, [prefix])
        yield checked if isinstance(checked, Refusal) else checked._replace(doubts=())
    elif len(heads) > 1:
        source = Folder(image=f"{prefix}{{label}}/**", splits=BY_CLASS)
        doubts = tuple(f"{folder}/ is called like a part of the data: is it a class?" for folder in splits)
        yield _checked(tree, LayoutGuess("folders", source, "class folders", doubts), heads, [prefix])
    doubts = _classes_in_names(tree)
    yield LayoutGuess("images", Folder(image=f"{prefix}**", splits=FRACTIONS), "images without classes", doubts)


def _split_folders(heads: set[str], folders: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the pattern of the folders of splits (`seg_{split}/seg_{split}`), and the split of each ({"seg_train": "train"})."""
    form, splits = "{split}", {head: head for head in sorted(heads) if is_split(head)}
    splits |= {head: head for head in sorted(heads) if splits and _OF_SPLIT.fullmatch(head) and head[:1] in "tTvV"}
    forms: dict[str, dict[str, str]] = {}  # train_images and val_images
    for head in () if splits else sorted(heads):
        if len(words := SPLIT_WORD.findall(head)) == 1:
            forms.setdefault(split_pattern(head), {})[head] = words[0]
    for one, of_form in forms.items() if len(forms) == 1 else ():
        if len(of_form) > 1 and not NO_IMAGE.fullmatch(_last_word(one)):
            form, splits = one, of_form
    within = [folder.split("/") for folder in folders if folder.split("/")[0] in splits]
    if within and all(len(parts) > 1 and parts[1] == parts[0] for parts in within):  # as zip files of Kaggle unpack
        form = f"{form}/{form}"
    return form, splits


def _not_alone(tree: Inventory) -> Answers:
    """Refuse folders in which a third of the images are called like masks, or half have the name of another."""
    for folder, names in tree.names.items():
        stems = Counter(os.path.splitext(name)[0] for name in names)
        masks = list(filter(_MASK_FILE.fullmatch, names))
        if 3 * len(masks) >= len(names) and (len(masks) < len(names) or len(tree.names) == 1):
            rule = f"{tree.root}: files such as {below(folder, masks[0])} are called like masks"
            yield Refusal("masks", SourceError(f"{rule}, and nothing says which images they belong to"))
            return
        if 2 * sum(count > 1 for count in stems.values()) > len(stems) > 1:
            one, other = [name for name in names if os.path.splitext(name)[0] == stems.most_common(1)[0][0]][:2]
            rule = f"{tree.root}: files such as {below(folder, one)} and {other} have one name"
            yield Refusal("masks", SourceError(f"{rule}, and nothing says how they belong together"))
            return


def _of_splits(
    tree: Inventory, prefix: str, form: str, folders: Sequence[str], splits: Mapping[str, str], whole: bool
) -> Answers:
    """Yield class folders below the folders of splits, or images alone.

    Args:
        tree: The files of the root.
        prefix: The folders above.
        form: The pattern of the folders of splits.
        folders: The folders with images below the prefix.
        splits: The split of each folder of one.
        whole: Whether there are no other folders.
    """
    depth = form.count("/") + 1
    classes = {split: set[str]() for split in splits.values()}
    elsewhere = set[str]()  # what would be classes of folders that are no splits
    for parts in (folder.split("/") for folder in folders):
        below_split = set(parts[depth : depth + 1])
        classes.get(splits.get(parts[0], ""), elsewhere).update(below_split)
    splits_read = None if whole else tuple(sorted(classes))
    below_splits = set().union(*classes.values())
    where = {split: f"{prefix}{'/'.join([literal(head)] * depth)}" for head, split in splits.items()}
    if len(below_splits) > 1:
        training = next((split for split in sorted(classes) if split.lower().startswith("train")), None)
        known = below_splits if training is None else classes[training]
        strange = {split: names - known for split, names in classes.items() if names - known}
        listed, doubts = dict[str, str](), list[str]()
        for split, names in sorted(classes.items()) if training is not None else ():
            alone = len(strange.get(split, ())) == 1
            if names and not alone:
                continue
            if form == "{split}" and (labels := _list_of_labels(tree, prefix, split, known)) is not None:
                listed[split] = labels
                strange.pop(split, None)
            elif alone and split.lower().startswith("test"):
                left_out = min(strange.pop(split))
                elsewhere.add(left_out)
                doubts.append(f"the folder {left_out} in {split}/ is no class; the split is left out")
                splits_read = tuple(one for one in splits_read or sorted(classes) if one != split)
        read = {
            split: names
            for split, names in classes.items()
            if split not in listed and (not splits_read or split in splits_read)
        }
        of_classes = set().union(*read.values())
        others = tuple(sorted(of_classes)) if splits_read and elsewhere - of_classes else None
        source = Folder(image=f"{prefix}{form}/{{label}}/**", splits=splits_read, classes=others, labels=listed)
        for split, names in strange.items():
            rule = f"{tree.root}: {split}/ has the folders {', '.join(sorted(names)[:3])}, which are no classes of {training}/"
            way_out = "give every split the same class folders, or write the recipe by hand"
            yield Refusal("folders", SourceError(f"{rule}; {way_out}"))
        guess = LayoutGuess("folders", source, "class folders below split folders", tuple(doubts))
        yield _checked(tree, guess, of_classes, [f"{one}/" for one in where.values()])
    doubts = [
        f"the only folder below the splits is {name}, which is no class"
        for name in below_splits
        if len(below_splits) == 1
    ]
    if doubts and (deeper := sorted({folder.split("/")[depth + 1] for folder in folders if folder.count("/") > depth})):
        by_hand = f"sources.Folder({f'{prefix}{form}/{literal(min(below_splits))}/{{label}}/**'!r})"
        doubts[0] += f"; if those in it ({', '.join(deeper[:3])}) are classes: {by_hand}"
    yield LayoutGuess(
        "images",
        Folder(image=f"{prefix}{form}/**", splits=splits_read),
        "split folders",
        (*doubts, *_classes_in_names(tree)),
    )


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


def _checked(tree: Inventory, guess: LayoutGuess, names: set[str], prefixes: Sequence[str]) -> LayoutGuess | Refusal:
    """Refuse class folders whose names, or the names of folders in them, say that they are no classes; say what is doubtful."""
    starts = {f"{plain(prefix)}{name}/": name for prefix in prefixes for name in sorted(names)}  # of class folders
    deeper = _below_each(tree.images, starts)
    inside = {folder.split("/")[0] for folders in deeper.values() for folder in folders}
    refusal = _no_classes(tree, guess, names, inside)
    if refusal is None and guess.layout == "class folders" and len(inside) > 1:
        refusal = _which_level(tree, prefixes[0], names, deeper)
    if refusal is None and guess.layout != "split folders below class folders":
        refusal = _strange_below(tree, starts, deeper)
    if refusal is not None:
        return refusal
    doubts = list(guess.doubts)
    pairs = [[plain(f"{prefix}{name}") for name in sorted(names)] for prefix in prefixes if len(names) == 2]
    one, other = next((pair for pair in pairs if tree.names.keys() >= set(pair)), ("", ""))
    # Without the folder's name at the end: 1_GT and 1_hazy, as in O-HAZE.
    stems, others = (
        {re.sub(rf"[ _.-]{re.escape(name.rpartition('/')[2])}$", "", os.path.splitext(file)[0]) for file in files}
        for name, files in ((folder, tree.names.get(folder, ())) for folder in (one, other))
    )
    fewer, many = sorted((stems, others), key=len)
    longer = sum(
        any(name[: cut.start()] in fewer for cut in re.finditer("[ _.-]", name)) for name in many
    )  # 1_0.9 of 1
    if one and (2 * len(stems & others) > len(many) or 2 * longer > len(many)):
        rule = f"{one}/ and {other}/ hold files of the same names"
        doubts.append(f"{rule}: are these classes, or images and what belongs to them?")
    if all(map(_NO_CLASS.fullmatch, names)):
        rule = (
            f"the folders {', '.join(sorted(names)[:3])} are called like dates, folders of cameras, patients or videos"
        )
        doubts.append(f"{rule}: are these classes? --as images reads them without")
    if inside:
        few = ", ".join(sorted(inside)[:3])
        doubts.append(f"the classes are {', '.join(sorted(names)[:3])}, and the folders in them ({few}) are not")
    return guess._replace(doubts=tuple(doubts))


def _below_each(folders: Iterable[str], starts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the folders below each of the starts, relative to it."""
    by_start: dict[str, list[str]] = {}
    for folder in folders:
        for slash in re.finditer("/", folder):
            if (start := folder[: slash.end()]) in starts:
                by_start.setdefault(start, []).append(folder[slash.end() :])
    return by_start


def _no_classes(tree: Inventory, guess: LayoutGuess, names: set[str], inside: set[str]) -> Refusal | None:
    """Refuse names of folders of images, of masks, and of parts of the data."""
    for of_kind, what in ((names, "not like classes"), (inside, "below what would be the classes")):
        images = sorted(
            name for name in of_kind if any(map(IMAGE_WORD.fullmatch, (_last_word(name), re.split("[ _-]", name)[0])))
        )
        masks = sorted(name for name in of_kind if NO_IMAGE.fullmatch(_last_word(name)) and not _WITH.match(name))
        alone = of_kind is names or guess.layout == "class folders"  # tiny-imagenet has train/n01443537/images
        alike = [name for name in images if IMAGE_WORD.fullmatch(re.sub(r"[ _-]?\d+$", "", name))]
        several = len(alike) > 1 and of_kind is names  # image_2 and image_3
        if (images and masks) or several or (alone and of_kind and len(of_kind) in (len(images), len(masks))):
            listing = " and ".join(f"{name}/" for name in (*images, *masks))
            rule = f"{tree.root}: {listing} are called like folders of images and masks, {what}"
            return Refusal("masks", SourceError(f"{rule}, but nothing says how they belong together"))
    by_split = Counter(
        pattern for name in names if "{split}" in (pattern := split_pattern(name)) and pattern != "{split}"
    )
    of_split = (name for name in sorted(names) if _OF_SPLIT.fullmatch(name) or by_split[split_pattern(name)] > 1)
    if split := next(of_split, None):
        rule = f"{tree.root}: {split}/ is called like a part of the data, not like a class"
        way_out = "write the recipe by hand, or rename the folders to train, val and the like"
        return Refusal("folders", SourceError(f"{rule}; {way_out}"))
    return None


def _which_level(tree: Inventory, prefix: str, names: set[str], deeper: Mapping[str, list[str]]) -> Refusal | None:
    """Refuse class folders most of which have the same folders in them, and letters of the alphabet, as in SUN397."""
    within = [{folder.split("/")[0] for folder in folders} for folders in deeper.values()]
    inside = set().union(*within)
    if 2 * sum(of_one == inside for of_one in within) <= len(names) and any(len(name) > 1 for name in names):
        return None
    few, inner = (", ".join(sorted(of_kind)[:3]) for of_kind in (names, inside))
    rule = f"{tree.root}: the folders {few} have the folders {inner}: which of them are the classes?"
    one, all_of_them = f"{prefix}{literal(min(names))}/{{label}}/**", f"{prefix}*/{{label}}/**"
    way_out = f"Write the recipe by hand: sources.Folder({one!r}), or {all_of_them!r} for the images of all"
    return Refusal("folders", SourceError(f"{rule} {way_out}"))


def _strange_below(tree: Inventory, starts: Mapping[str, str], deeper: Mapping[str, list[str]]) -> Refusal | None:
    """Refuse class folders with splits or further classes in them, or with files of annotations in folders of their own."""
    classes = set(starts.values())
    for start, folders in deeper.items():
        name = starts[start]
        for parts in (folder.split("/") for folder in folders):
            strange = [n for n, part in enumerate(parts) if part != name and (is_split(part) or part in classes)]
            if strange:
                there = "/".join(parts[: strange[0] + 1])
                kind = "a part of the data" if is_split(parts[strange[0]]) else "another class"
                rule = f"{tree.root}: {start}{there}/ is below what would be the class {name}, and called like {kind}"
                way_out = "write the recipe by hand, with the folder that holds the classes"
                return Refusal("folders", SourceError(f"{rule}; {way_out}: sources.Folder('.../{{label}}/**')"))
    for start, folders in _below_each((one for one in tree.others if one not in tree.images), starts).items():
        if start in deeper:
            there = f"{start}{folders[0]}"
            file = next(iter(tree.others[there].values()))[0]
            rule = f"{tree.root}: {there}/{file} is below what would be a class, in a folder without images"
            return Refusal("folders", SourceError(f"{rule}, and no source reads it"))
    return None


_MASK_FILE = re.compile(rf".+[_-](?:{MASK_WORD.pattern}|(?:gt|ground[_ ]?truth)[_-].*)\.\w+", re.IGNORECASE)
"""Masks or targets by their names: `1_mask.png`, `0001_GT_SRGB_010.png`."""
_WITH = re.compile(r"(?:with|without|has|no|non|not)[ _-]", re.IGNORECASE)
"""`with_mask` and `without_mask` are classes of faces."""
_NO_CLASS = re.compile(
    rf"{OF_ONE}[ _-]?\d+|(?:19|20)\d\d(?:[-_. ]?(?:0[1-9]|1[0-2])(?:[-_. ]?[0-3]\d(?:\D.*)?)?)?"
    r"|[1-9]\d\d(?-i:[A-Z_][A-Z\d_]{4})",
    re.IGNORECASE,
)
"""`patient001`, `2024`, `2024-05-03 holiday`, and the folders of cameras by the standard DCF: `100CANON`."""
_OF_SPLIT = re.compile(r"(?:train|test|val|valid)[ _-]?(?:\d+|(?-i:[A-Z]))|(?:fold|split|part)[ _-]?\d+", re.IGNORECASE)
"""Folders such as trainA, test_1 and fold3."""


def _last_word(name: str) -> str:
    """`GroundTruth` of `ISIC_GroundTruth`, `image` of `image_2`: folders of many data sets have their name in front."""
    plain = re.sub(r"(?<=[a-z])[ _-]?\d+$", "", name)
    whole = NO_IMAGE.fullmatch(plain) or IMAGE_WORD.fullmatch(plain)
    return plain if whole else re.split(r"[ _-]", plain)[-1]
