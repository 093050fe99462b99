"""Class folders and plain folders, on trees written for each case."""

import os
import unicodedata

import pytest

from tfprep.errors import SampleError, SourceError
from tfprep.sources import Folder, Fractions, read_files
from tfprep.sources.patterns import HIDDEN


def listed(source, root):
    return [(entry.key, entry.split, *entry.values) for entry in source.scan(root).entries]


@pytest.mark.parametrize(
    ("source", "paths", "classes", "expected"),
    [
        (
            Folder(),
            ["dog/2.jpg", "cat/1.png", "cat/sub/deep/3.jpeg", "cat/sub/1.png", "bird/readme.txt"],
            ("cat", "dog"),
            [("cat/1.png", "train", 0), ("cat/sub/1.png", "train", 0), ("cat/sub/deep/3.jpeg", "train", 0),
             ("dog/2.jpg", "train", 1)],
        ),
        (
            Folder("{split}/{label}/**"),
            ["train/cat/1.jpg", "val/cat/1.jpg", "val/dog/2.jpg", "train/ant/3.jpg"],
            ("ant", "cat", "dog"),
            [("train/ant/3.jpg", "train", 0), ("train/cat/1.jpg", "train", 1), ("val/cat/1.jpg", "val", 1),
             ("val/dog/2.jpg", "val", 2)],
        ),
        (
            Folder("{split}/{label}/**", splits=("train", "val")),
            ["train/cat/1.jpg", "val/cat/2.jpg", "extra/cat/3.jpg"],
            ("cat",),
            [("train/cat/1.jpg", "train", 0), ("val/cat/2.jpg", "val", 0)],
        ),
        (
            Folder("images/{label}_{number}.jpg"),
            ["images/great_dane_1.jpg", "images/abyssinian_10.jpg"],
            ("abyssinian", "great_dane"),
            [("images/abyssinian_10.jpg", "train", 0), ("images/great_dane_1.jpg", "train", 1)],
        ),
        (
            Folder(classes=("dog", "owl", "cat")), ["cat/1.jpg", "dog/2.jpg"], ("dog", "owl", "cat"),
            [("cat/1.jpg", "train", 2), ("dog/2.jpg", "train", 0)],
        ),
        (Folder("**"), ["b.jpg", "a/c.jpg"], None, [("b.jpg", "train"), ("a/c.jpg", "train")]),
        (
            Folder("{split}/{label}/**"), ["Val_2/cat/1.jpg", "v1/cat/1.jpg"], ("cat",),
            [("Val_2/cat/1.jpg", "Val_2", 0), ("v1/cat/1.jpg", "v1", 0)],
        ),
    ],
)  # fmt: skip
def test_splits_and_classes(tree, source, paths, classes, expected):
    listing = source.scan(tree(*paths))
    entries = list(listing.entries)
    assert [(entry.key, entry.split, *entry.values) for entry in entries] == expected
    assert [entry.files for entry in entries] == [(key,) for key, *_ in expected]
    assert listing.classes == ({} if classes is None else {"label": classes})
    assert listing.kinds == ({"image": "image"} if classes is None else {"image": "image", "label": "label"})
    counted = {f"in no split of {source.splits}": 1} if source.splits else {}
    assert {reason: n for reason, n in listing.tally.items() if "suffix" not in reason} == counted


REFUSED = [
    (Folder(classes=("cat", "dog")), ["cat/1.jpg", "dgo/2.jpg"], "dgo/2.jpg: 'dgo' is none of the 2 classes: 'cat', 'dog'"),
    (
        Folder(), ["a.jpg", "notes/b.txt"],
        r"no file fits '\{label\}/\*\*' .*\.jpg.*holds 'a.jpg', 'notes/': say where the files are with --data, or change",
    ),
    (Folder(), [], "no file fits .* this folder holds nothing: say where the files are"),
    *(
        (Folder(), [f"{name}/1.jpg", "dog/1.jpg"], "a class name has no spaces around it, no line breaks")
        for name in ("cat ", " cat", "c\nat", "c\x1b[31mat")
    ),
    *(
        (Folder("{split}/{label}/**"), [f"{name}/cat/1.jpg"], f"expected the name of a split.*got '{name}'")
        for name in ("my split", "train_v1", "1st", "a-b")
    ),
    (
        Folder(), [f"cat/{unicodedata.normalize(form, 'é')}.jpg" for form in ("NFC", "NFD")],
        r"cat.*'\\xe9.jpg'.* are one name, 'é.jpg', in two Unicode spellings",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("source", "paths", "message"), REFUSED)
def test_a_tree_that_cannot_be_read_is_refused_by_name(tree, source, paths, message):
    root = tree(*paths)
    with pytest.raises(SourceError, match=message):
        listed(source, root)


@pytest.mark.parametrize("order", [list, lambda found: found[::-1]])
def test_entries_are_ordered_by_name_whatever_the_order_of_scandir(tree, monkeypatch, order):
    root = tree("b/2.jpg", "b/1.jpg", "a/x/1.jpg", "a/é.jpg", "a/Z.jpg", "a b/1.jpg", "a/x.jpg")
    scandir = os.scandir

    class Ordered:
        def __init__(self, path):
            self.found = order(sorted(scandir(path), key=lambda item: item.name))

        def __enter__(self):
            return iter(self.found)

        def __exit__(self, *error): ...

    monkeypatch.setattr(os, "scandir", Ordered)
    keys = [key for key, *_ in listed(Folder(), root)]
    assert keys == ["a/Z.jpg", "a/x.jpg", "a/é.jpg", "a/x/1.jpg", "a b/1.jpg", "b/1.jpg", "b/2.jpg"]


@pytest.mark.parametrize("stratify", [None, "label"])
def test_skipped_files_are_counted_once_for_repeated_iterations(tree, stratify):
    root = tree(
        "cat/1.jpg", "cat/._1.jpg", "@eaDir/2.jpg", "cat/@eaDir/1.jpg/THUMB.jpg", "cat/a.txt", "stray.jpg", "readme"
    )
    os.mkfifo(root / "cat" / "pipe")
    listing = Folder(splits=Fractions(train=1.0, stratify=stratify)).scan(root)
    assert len(list(listing.entries)) == 1
    assert listing.tally == {HIDDEN: 3, "not an image by its suffix": 3, "outside the pattern": 1}


def test_a_missing_root(tmp_path):
    with pytest.raises(SourceError, match="nowhere: expected the folder that holds the raw data"):
        listed(Folder("**"), tmp_path / "nowhere")


LOOP = {"a link to a folder above itself: cat/loop": 1}
LINKS = [  # where links are and lead to, the keys beside cat/1.jpg, and what is skipped
    (
        {"dog": "../elsewhere", "cat/3.jpg": "1.jpg", "cat/4.jpg": "nowhere"},
        ["cat/3.jpg", "cat/4.jpg", "dog/in/2.jpg"],
        {},
    ),
    ({"dog": "cat", "owl": "cat"}, ["dog/1.jpg", "owl/1.jpg"], {}),
    *(({"cat/loop": target}, [], LOOP) for target in (".", "..", "../../data")),
]


@pytest.mark.parametrize(("links", "keys", "tally"), LINKS)
def test_links_are_followed_dangling_ones_are_listed_and_loops_are_skipped(tree, tmp_path, links, keys, tally):
    root = tree("cat/1.jpg", "../elsewhere/in/2.jpg")
    for name, target in links.items():
        (root / name).symlink_to(target)
    listing = Folder().scan(root)
    assert [entry.key for entry in listing.entries] == ["cat/1.jpg", *keys]
    assert listing.tally == tally


def test_a_link_to_itself_affects_no_other_file(tree):
    root = tree("cat/1.jpg")
    (root / "cat" / "2.jpg").symlink_to("2.jpg")
    (root / "cat" / "away").symlink_to("away")
    listing = Folder().scan(root)
    entries = list(listing.entries)
    assert [entry.key for entry in entries] == ["cat/1.jpg", "cat/2.jpg"]
    with pytest.raises(SampleError, match="cannot read the file: Too many levels of symbolic links"):
        read_files(root, listing.files, entries[1])


def test_a_folder_that_cannot_be_listed_is_named(tree, monkeypatch):
    root = tree("cat/1.jpg", "dog/1.jpg")
    scandir = os.scandir

    def refusing(path):
        if path.rstrip("/").endswith("dog"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)  # Permissions do not stop root, who may run this test.
    with pytest.raises(SourceError, match=r"dog/: cannot list this folder: Permission denied"):
        listed(Folder(), root)


def test_one_class_in_two_unicode_spellings_is_one_class(tree):
    composed, split_up = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    root = tree(f"train/{composed}/1.jpg", f"val/{split_up}/2.jpg")
    listing = Folder("{split}/{label}/**").scan(root)
    entries = list(listing.entries)
    assert listing.classes == {"label": (composed,)}
    assert [e.key for e in entries] == [f"train/{composed}/1.jpg", f"val/{composed}/2.jpg"]
    assert entries[1].files == (f"val/{split_up}/2.jpg",)
    assert (root / entries[1].files[0]).exists()


def test_a_name_that_is_not_unicode_gets_a_unicode_key(tree):
    root = tree(os.fsdecode(b"cat/caf\xe9.jpg"))
    entry = next(Folder().scan(root).entries)
    assert entry.key == "cat/caf\\xe9.jpg"
    assert read_files(root, ("image",), entry) == {"image": b"bytes of cat/caf\xe9.jpg"}


def test_classes_are_sorted_as_in_keras(tree):
    root = tree(*(f"{name}/1.jpg" for name in ("10", "9", "Zebra", "ant", "élan", "a b")))
    assert Folder().scan(root).classes["label"] == tuple(sorted(os.listdir(root)))


def test_entries_are_made_one_at_a_time(tree):
    root = tree("a/1.jpg", "b/2.jpg")
    entries = Folder("*/*").scan(root).entries
    assert next(entries).key == "a/1.jpg"
    (root / "b" / "3.jpg").touch()
    assert [entry.key for entry in entries] == ["b/2.jpg", "b/3.jpg"]
