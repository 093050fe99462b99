"""Planted duplicates are found, counted, listed and left out; nothing else is."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.commands import status_of
from tests.photos import natural, save
from tfprep import codecs, sources
from tfprep.dataset import open_dataset
from tfprep.inspect.fingerprints import suspected_groups
from tfprep.inspect.leaks import find_leaks, searched_for

COPIES = ("train/a/copy.png", "val/a/0.png"), ("train/b/twice.png", "train/b/3.png")
SMALLER, PALER = ("val/b/smaller.jpg", "train/b/5.png"), ("test/a/paler.jpg", "train/a/6.png")


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """30 different pictures in three splits, two equal files, two pictures that are nearly equal, and one with EXIF data."""
    root = tmp_path_factory.mktemp("raw")
    for number in range(30):
        split = "val" if number < 2 else "test" if number < 4 else "train"
        save(root / ("train/b/3.png" if number == 3 else f"{split}/{'ab'[number % 2]}/{number}.png"), natural(number))
    for copy, original in COPIES:
        shutil.copy(root / original, root / copy)
    (root / SMALLER[0]).parent.mkdir(exist_ok=True)
    Image.open(root / SMALLER[1]).resize((64, 48)).save(root / SMALLER[0], quality=60)
    Image.open(root / PALER[1]).point(lambda v: min(255, v + 20)).save(root / PALER[0], quality=90)
    return root


@pytest.fixture(scope="module")
def built(raw, tmp_path_factory, build_folder):
    return build_folder(raw, tmp_path_factory.mktemp("built") / "photos")


def pairs_of(leaks):
    return {frozenset((pair.first, pair.second)): pair for pair in leaks.pairs}


def test_planted_pairs_are_found_and_no_others(built):
    leaks = find_leaks(open_dataset(built))
    pairs = pairs_of(leaks)
    assert pairs.keys() == {frozenset(pair) for pair in (*COPIES, SMALLER, PALER)}
    assert [pair.straddles for pair in leaks.pairs] == [True, True, True, False]
    for pair in COPIES:
        assert (pairs[frozenset(pair)].exact, pairs[frozenset(pair)].distance) == (True, 0)
    assert not pairs[frozenset(SMALLER)].exact
    assert leaks.counts.exact_across == leaks.counts.exact_within == leaks.counts.near_within == 1
    assert leaks.counts.near_across == 3
    assert leaks.leaking == {"train": {"val": 2, "test": 1}, "val": {"train": 2}, "test": {"train": 1}}
    # What is left out is never of the test split.
    assert {leaks.fingerprints.key(row) for row in leaks.excluded} == {COPIES[0][0], SMALLER[1], PALER[1]}


@pytest.mark.parametrize("store", [{"image": codecs.Jpeg(95)}, {"image": codecs.Original(), "label": codecs.Scalar()}])
def test_hashes_are_computed_where_the_index_has_none(raw, build_folder, tmp_path, store):
    data = open_dataset(build_folder(raw, tmp_path / "plain", hash=False, store=store))
    assert data.index("train")["image_hash"].null_count == data.split("train").samples
    counted = []
    leaks = find_leaks(data, on_record=lambda done, total: counted.append((done, total)))
    assert leaks.unhashed == 0
    assert (34, 34) in counted
    assert pairs_of(leaks).keys() == {frozenset(pair) for pair in (*COPIES, SMALLER, PALER)}


def test_an_excluded_list_makes_the_next_build_clean(built, raw, tmp_path, build_folder):
    path = tmp_path / "leaks.csv"
    assert find_leaks(open_dataset(built)).write_excluded(path) == 3
    source = sources.Without(sources.Folder("{split}/{label}/**"), path)
    again = open_dataset(build_folder(raw, tmp_path / "again", source=source))
    assert sum(split.samples for split in again.splits.values()) == 31
    leaks = find_leaks(again)
    assert not leaks.straddle
    assert leaks.counts.near_within == 1


def test_groups_keep_duplicates_in_one_split(built, raw, tmp_path, build_folder):
    path = tmp_path / "groups.csv"
    assert find_leaks(open_dataset(built)).write_groups(path) == 8
    for seed in range(4):
        fractions = sources.Fractions(train=0.5, val=0.5, seed=seed, group_by=sources.GroupFile(path))
        source = sources.Folder("*/{label}/**", splits=fractions)
        data = open_dataset(build_folder(raw, tmp_path / f"grouped{seed}", source=source))
        assert not find_leaks(data).straddle
        plain = sources.Folder("*/{label}/**", splits=sources.Fractions(train=0.5, val=0.5, seed=seed))
        split_of = {entry.key: entry.split for entry in plain.scan(raw).entries}
        grouped = {row["key"] for row in csv.DictReader(path.read_text().splitlines())}
        for split in data.splits:  # a sample without a group stays where it was
            assert all(split_of[key] == split for key in data.index(split)["key"].to_pylist() if key not in grouped)


def test_a_thousand_equal_pictures_are_counted_not_listed(make_dataset):
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = make_dataset(samples={"train": 60, "val": 40}, fields=["image"])
    table = pq.read_table(made.path / "index.parquet")
    place = table.schema.get_field_index("image_hash")
    table = table.set_column(place, "image_hash", pa.array([5] * 100, pa.uint64()))
    pq.write_table(table, made.path / "index.parquet", row_group_size=60)
    made.seal()
    leaks = find_leaks(open_dataset(made.path), most_pairs=7)
    assert leaks.counts.near_across == 60 * 40
    assert leaks.counts.near_within == 60 * 59 // 2 + 40 * 39 // 2
    assert len(leaks.pairs) == 7
    assert all(pair.straddles for pair in leaks.pairs)
    assert len(leaks.excluded) == 60
    assert len(set(leaks.groups.tolist())) == 1


@pytest.fixture(scope="module")
def turned(tmp_path_factory, build_folder):
    """Eight pictures in train, and copies in val: mirrored, rotated by 90° and 180°, cropped by 5 %, of a label of their own."""
    root = tmp_path_factory.mktemp("turned")
    changes = (
        ImageOps.mirror,
        lambda picture: picture.transpose(Image.Transpose.ROTATE_90),
        lambda picture: picture.transpose(Image.Transpose.ROTATE_180),
        lambda picture: picture.crop((3, 2, 125, 93)),
    )
    for number in range(8):
        rng = np.random.default_rng(number)
        grain = rng.normal(0, 25, (24, 32, 3)).repeat(4, 0).repeat(4, 1)
        picture = Image.fromarray(np.clip(natural(number) + grain, 0, 255).astype(np.uint8))
        for split, label, one in (("train", "a", picture), ("val", "ab"[number % 2], changes[number // 2](picture))):
            path = root / "raw" / split / label / f"{number}{split[0]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            one.save(path)
    return build_folder(root / "raw", root / "built")


def test_mirrored_rotated_and_cropped_pictures_are_found_and_no_others(turned):
    leaks = find_leaks(open_dataset(turned))
    found = {(pair.first.split("/")[-1], pair.second.split("/")[-1]): pair.orientation for pair in leaks.pairs}
    kinds = ["mirrored"] * 2 + ["rotated by 90°"] * 2 + ["rotated by 180°"] * 2 + [""] * 2
    assert found == {(f"{number}t.png", f"{number}v.png"): kind for number, kind in enumerate(kinds)}
    assert leaks.search.compared == leaks.search.candidates >= 8
    assert all(pair.correlation >= 0.65 for pair in leaks.pairs)


def test_one_picture_under_two_labels_is_a_list_of_its_own(turned, capsys, tmp_path):
    leaks = find_leaks(open_dataset(turned))
    assert sorted((pair.first.split("/")[-1], pair.labels) for pair in leaks.two_labels) == [
        (f"{number}t.png", ("a", "b")) for number in (1, 3, 5, 7)
    ]
    assert leaks.two_labels_count == 8
    page = tmp_path / "page.html"
    assert status_of("check", turned, "--html", page) == 4
    text = capsys.readouterr().out
    assert "The same picture under two labels: 8 samples" in text
    assert "train: train/a/1t.png, label a  val: val/b/1v.png, label b  (mirrored" in text
    assert "group_by=sources.GroupFile(HERE / 'groups.csv')" in text
    assert "The same picture under two labels" in page.read_text()


def test_equal_files_under_two_labels_are_named(tmp_path, build_folder):
    for place in ("train/a/0.png", "train/b/copy.png", "val/b/again.png", "val/b/other.png"):
        save(tmp_path / "raw" / place, natural(place == "val/b/other.png"))
    leaks = find_leaks(open_dataset(build_folder(tmp_path / "raw", tmp_path / "out")))
    pairs = {(pair.first, pair.second, pair.labels) for pair in leaks.two_labels}
    assert all("train/a/0.png" in pair[:2] and sorted(pair[2]) == ["a", "b"] for pair in pairs)
    assert pairs
    assert leaks.two_labels_count == 3


def test_what_cannot_be_compared_counts_by_its_hash(built):
    leaks = find_leaks(open_dataset(built), from_records=False)
    assert (leaks.search.compared, leaks.search.by_hash) == (0, 2)
    assert pairs_of(leaks).keys() == {frozenset(pair) for pair in (*COPIES, SMALLER, PALER)}


def test_a_split_for_training_has_other_names_too(tmp_path, build_folder):
    """Of a picture in both, `Training` loses its copy as `train` does; the statistics are its own."""
    for split, number in (("Testing", 0), ("Training", 0), ("Training", 1), ("Validation", 2)):
        save(tmp_path / "raw" / split / "a" / f"{number}.png", natural(number))
    data = open_dataset(build_folder(tmp_path / "raw", tmp_path / "out", store={"image": codecs.Png()}))
    leaks, pixels = find_leaks(data), np.stack([natural(0), natural(1)])
    assert {leaks.fingerprints.key(row) for row in leaks.excluded} == {"Training/a/0.png"}
    np.testing.assert_allclose(data.manifest.statistics["image"].mean, pixels.mean((0, 1, 2)))


def test_groups_of_one_prefix_are_suspected(tmp_path, build_folder):
    for split, number in (("train", 1), ("train", 2), ("val", 3)):
        save(tmp_path / "raw" / split / f"drive7_{number:04d}.png", natural(number))
    for split, name in (("train", "x"), ("val", "y")):
        save(tmp_path / "raw" / split / f"{name}.png", natural(ord(name)))
    store = {"image": codecs.Png()}
    source = sources.Folder("{split}/**")
    data = open_dataset(build_folder(tmp_path / "raw", tmp_path / "out", source=source, store=store))
    (suspicion,) = suspected_groups(data, find_leaks(data).fingerprints)
    assert (suspicion.kind, suspicion.examples) == ("prefix", {"drive7": {"train": 2, "val": 1}})


def test_the_command(built, tmp_path, capsys):
    page, listed = tmp_path / "page.html", tmp_path / "leaks.csv"
    assert status_of("check", built, "--json", "--html", page, "--exclude", listed) == 4
    result = json.loads(capsys.readouterr().out)
    assert result["pairs"] == {"exact_across": 1, "exact_within": 1, "near_across": 3, "near_within": 1}
    assert [pair["straddles"] for pair in result["listed"]] == [True, True, True, False]
    assert len(listed.read_text().splitlines()) == 4
    html = page.read_text()
    assert html.count("data:image/jpeg;base64,") == 8
    assert "<script" not in html
    assert not re.findall(r"""(?:src|url|link)[^>]*http""", html)
    assert re.search(r'our own test photos: <a href="https://[^"]*docs/inspect.md"', html)
    assert status_of("check", built) == 4
    text = capsys.readouterr().out
    assert "2 of 29 samples of train occur in val too" in text


def test_a_search_that_ends_early_says_so(built, monkeypatch):
    assert "There are more" not in searched_for(find_leaks(open_dataset(built)))
    for name in ("fingerprints", "leaks"):
        monkeypatch.setattr(f"tfprep.inspect.{name}.MOST_PAIRS", 1)
    assert "There are more, which were not looked for" in searched_for(find_leaks(open_dataset(built)))


def test_the_command_without_leaks_succeeds_and_advises_nothing(tmp_path, build_folder, capsys):
    for number in range(6):
        save(tmp_path / "raw" / ("train", "val")[number % 2] / "a" / f"{number}x.png", natural(100 + number))
    out = build_folder(tmp_path / "raw", tmp_path / "out")
    assert status_of("check", out) == 0
    assert "--groups" not in capsys.readouterr().out
    assert np.array_equal(find_leaks(open_dataset(out)).groups, np.arange(6))
