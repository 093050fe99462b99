"""Fractions, compared with a second implementation of the rule, and how splits change when samples are added or removed."""

import pickle
import tarfile
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from tests.sources.building import folder
from tfprep import sources
from tfprep.errors import SourceError
from tfprep.seeding import sample_hash
from tfprep.sources import Entry, Fractions
from tfprep.sources.splits import listing_of

THREE = {"train": 0.7, "val": 0.2, "test": 0.1}


def scene(key):
    return key.split("_", maxsplit=1)[0]


def split(labels, fractions, groups=None):
    """The split of every key, by its label."""

    def rows(tally):
        for key, label in labels.items():
            yield Entry(key, "", (key,), (label,)), groups[key] if groups else None

    source = SimpleNamespace(kinds=dict, splits=fractions)
    entries = list(listing_of(source, ("image",), ("label",), {}, rows).entries)
    assert [(e.key, e.files, e.values) for e in entries] == [(k, (k,), (n,)) for k, n in labels.items()]
    return {entry.key: entry.split for entry in entries}


def samples(count, classes=1, prefix="s"):
    return {f"{prefix}{i}_{i % 7}.jpg": i % classes for i in range(count)}


@pytest.mark.parametrize("seed", [0, 5])
def test_the_hash_of_a_sample_sets_its_split(seed):
    made = split(samples(500), Fractions(**THREE, seed=seed))
    for key, name in made.items():
        position = sample_hash(seed, f"split\0{key}") / 2**64
        assert name == ("train" if position < 0.7 else "val" if position < 0.9 else "test")


@pytest.mark.parametrize("counts", [(1000, 30, 7), (11, 3, 1), (250,)])
def test_stratified_against_the_rule_written_out(counts):
    """Shares are exact to within one sample."""
    labels = {f"c{c}_{i}.jpg": c for c, count in enumerate(counts) for i in range(count)}
    made = split(labels, Fractions(**THREE, seed=2, stratify="label"))
    for c, count in enumerate(counts):
        mine = sorted((key for key in labels if labels[key] == c), key=lambda key: sample_hash(2, f"split\0{key}"))
        for i, key in enumerate(mine):
            middle = (i + 0.5) / count
            assert made[key] == ("train" if middle < 0.7 else "val" if middle < 0.9 else "test")
        found = Counter(made[key] for key in mine)
        assert all(abs(found[name] - share * count) <= 1 for name, share in THREE.items())


@pytest.mark.parametrize("group_by", [r"^([^_]+)_", scene], ids=["regex", "function"])
def test_no_group_straddles_a_split(group_by):
    labels = {f"g{g}_{i}": g % 3 for g in range(200) for i in range(1 + g % 5)}
    made = split(labels, Fractions(train=0.6, val=0.4, group_by=group_by))
    splits = defaultdict(set)
    for key, name in made.items():
        splits[scene(key)].add(name)
    assert all(len(names) == 1 for names in splits.values())
    assert {"train", "val"} == set(made.values())


def test_a_regex_with_several_groups_takes_them_together():
    labels = {f"{a}-{x}-{b}": 0 for a in range(8) for b in range(8) for x in range(4)}
    made = split(labels, Fractions(train=0.5, val=0.5, group_by=r"^(\d)-\d-(\d)$"))
    assert len({(key[0], key[4], name) for key, name in made.items()}) == 64


@pytest.mark.parametrize(
    "share", [{"train": 1.0}, {"train": 0.0, "test": 1.0}, {"train": 0.1 + 0.2, "val": 0.3, "test": 0.4}]
)
def test_a_share_of_zero_makes_no_split(share):
    made = split(samples(400), Fractions(**share))
    assert set(made.values()) == {name for name, value in share.items() if value}


def test_a_key_without_a_group_is_named():
    with pytest.raises(SourceError, match=r"finds no group in the key 'odd.jpg'"):
        split({"a_1": 0, "odd.jpg": 0}, Fractions(train=1.0, group_by=r"^(\w+)_"))


def test_samples_with_several_classes_are_stratified_by_the_rarest():
    """A quarter of those of class 2, the rarest, then of those of class 0 without it; samples without a class share a stratum."""
    tens = [[0, 1, 2], *[[0, 1]] * 4, *[[1]] * 4, []]
    labels = {f"{number}": tens[number % 10] for number in range(400)}
    made = split(labels, Fractions(train=0.75, val=0.25, stratify="label"))
    for stratum in ([0, 1, 2], [0, 1], [1], []):
        splits = [made[key] for key, classes in labels.items() if classes == stratum]
        assert abs(splits.count("val") - len(splits) / 4) <= 1


# --- files of keys: groups, and samples to leave out -------------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    for name in ("a/1.jpg", "a/2.jpg", "b/3.jpg", "b/4.jpg"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).touch()
    return tmp_path / "raw"


def test_listed_samples_are_left_out_and_tallied(root, tmp_path):
    path = tmp_path / "leaks.csv"
    path.write_text('key,split\na/2.jpg,train\n"b/3.jpg",train\nno/such.jpg,train\n')
    (root / "b" / "notes.txt").touch()
    listing = sources.Without(sources.Folder(), path).scan(root)
    assert [entry.key for entry in listing.entries] == ["a/1.jpg", "b/4.jpg"]
    tally = dict(listing.tally)
    assert tally.pop("listed in leaks.csv") == 2
    assert tally.pop("listed in leaks.csv, but not in the data") == 1
    assert tally == {"not an image by its suffix": 1}
    assert listing.classes == {"label": ("a", "b")}


ONE = {"splits": ("train",)}
BOX = '"bbox": [1, 2, 20, 30], "category_id": 1, "id": 1, "image_id": 1'


@pytest.mark.parametrize(
    ("source", "counted"),
    [
        (sources.Folder("{split}/*", **ONE), {"in no split of ('train',)": 1}),
        (sources.Arrays("{split}.npy", **ONE), {"in no split of ('train',)": 2}),
        (sources.Archives("{split}.tar", **ONE), {"archive of a split that is not in ('train',)": 1}),
        (sources.Table("{split}.csv", "{split}/{id}.png", **ONE), {"table of a split that is not in ('train',)": 1}),
        (sources.ObjectTable("{split}.csv", "{split}/{id}.png", "id", fields=("box_labels",), **ONE),
         {"table of a split that is not in ('train',)": 1}),
        (sources.Coco("{split}.json", **ONE), {"file of a split that is not in ('train',)": 1}),
        (sources.Voc("{split}/*", "{split}/*.xml", "{split}.txt", **ONE),
         {"list of a split that is not in ('train',)": 1}),
        (sources.Yolo(**ONE), {"folder or list of a split that is not in ('train',)": 1}),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_a_split_that_is_not_taken_is_counted(tmp_path, source, counted):
    pytest.importorskip("yaml")
    root = folder(tmp_path, {"train/a.png": 1, "val/b.png": 2, "data.yaml": "{train: train, val: val, names: [x]}"})
    for split, name in (("train", "a"), ("val", "b")):
        images = f'"images": [{{"id": 1, "file_name": "{name}.png"}}], "categories": [{{"id": 1, "name": "x"}}]'
        folder(root, {f"{split}.csv": f"id\n{name}\n", f"{split}.txt": name,
                      f"{split}/{name}.txt": "", f"{split}/{name}.xml": "<annotation/>",
                      f"{split}.json": f'{{{images}, "annotations": [{{{BOX}}}]}}'})  # fmt: skip
        np.save(root / f"{split}.npy", np.zeros((2, 8, 8), np.uint8))
        with tarfile.open(root / f"{split}.tar", "w") as archive:
            archive.add(root / split / f"{name}.png", f"{name}.png")
    listing = source.scan(root)
    assert {entry.split for entry in listing.entries} == {"train"}
    assert {reason: count for reason, count in listing.tally.items() if "split" in reason} == counted


def test_fields_are_those_of_the_other_source(root):
    source = sources.Without(sources.Folder(), "leaks.csv")
    assert source.kinds() == {"image": "image", "label": "label"}
    assert pickle.loads(pickle.dumps(source)) == source


def test_a_group_stays_together_and_others_where_they_were(root, tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("key,group\na/1.jpg,one\nb/4.jpg,two\n")

    def splits(group_by, seed):
        fractions = Fractions(train=0.5, val=0.5, seed=seed, group_by=group_by)
        return {entry.key: entry.split for entry in sources.Folder(splits=fractions).scan(root).entries}

    groups = sources.GroupFile(path)
    assert splits(groups, 0)
    path.write_text("key,group\na/1.jpg,one\nb/4.jpg,one\n")  # which counts, although the object is the same
    for seed in range(20):
        grouped, plain = splits(groups, seed), splits(None, seed)
        assert grouped["a/1.jpg"] == grouped["b/4.jpg"]
        assert (grouped["a/2.jpg"], grouped["b/3.jpg"]) == (plain["a/2.jpg"], plain["b/3.jpg"])


def test_a_list_of_other_data_is_an_error(root, tmp_path):
    """As one that was written before the data was moved: it would leave out nothing, and keep nothing together."""
    path = tmp_path / "list.csv"
    fractions = Fractions(train=0.5, val=0.5, group_by=sources.GroupFile(path))
    for source in (sources.Folder(splits=fractions), sources.Without(sources.Folder(), path)):
        path.write_text("key,group\ndata/a/1.jpg,one\ndata/a/2.jpg,one\n")
        with pytest.raises(
            SourceError, match=r"list\.csv names no sample of this data: its keys, such as 'data/a/1\.jpg'"
        ):
            list(source.scan(root).entries)
        path.write_text("key,group\na/1.jpg,one\ndata/a/2.jpg,one\n")
        listing = source.scan(root)
        assert list(listing.entries)
        assert listing.tally["listed in list.csv, but not in the data"] == 1


def test_a_sample_in_two_groups_is_an_error(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("key,group\na,0\nb,0\nb,0\na,1\n")
    with pytest.raises(SourceError, match=r"GroupFile: .*groups.csv has 'a' in two groups, '0' and '1'"):
        sources.GroupFile(path)("b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"Without: .*leaks.csv: there is no such table; `tfprep check` writes it"),
        ("split\ntrain\n", r"Without: .*leaks.csv: there is no column 'key'"),
        ("key,split\n,train\n", r"Without: .*leaks.csv, row 1: expected a value for key"),
    ],
)
def test_a_list_that_cannot_be_read_is_an_error(root, tmp_path, content, message):
    path = tmp_path / "leaks.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SourceError, match=message):
        sources.Without(sources.Folder(), path).scan(root)
