"""A list of samples to leave out, and groups from a file."""

import pickle

import pytest

from tfprep import sources
from tfprep.errors import SourceError


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


def test_fields_are_those_of_the_other_source(root):
    source = sources.Without(sources.Folder(), "leaks.csv")
    assert source.kinds() == {"image": "image", "label": "label"}
    assert pickle.loads(pickle.dumps(source)) == source


def test_a_group_stays_together_and_others_where_they_were(root, tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("key,group\na/1.jpg,one\nb/4.jpg,one\n")

    def splits(group_by, seed):
        fractions = sources.Fractions(train=0.5, val=0.5, seed=seed, group_by=group_by)
        return {entry.key: entry.split for entry in sources.Folder(splits=fractions).scan(root).entries}

    for seed in range(20):
        grouped, plain = splits(sources.GroupFile(path), seed), splits(None, seed)
        assert grouped["a/1.jpg"] == grouped["b/4.jpg"]
        assert (grouped["a/2.jpg"], grouped["b/3.jpg"]) == (plain["a/2.jpg"], plain["b/3.jpg"])


def test_a_sample_in_two_groups_is_an_error(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("key,group\na,0\nb,0\nb,0\na,1\n")
    with pytest.raises(SourceError, match=r"GroupFile: .*groups.csv has 'a' in two groups, '0' and '1'"):
        sources.GroupFile(path)("b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"Without: cannot read .*leaks.csv \(No such file or directory\); `tfprep check` writes it"),
        ("split\ntrain\n", r"Without: .*leaks.csv, row 2: expected a value for key; got \{'split': 'train'\}"),
        ("key,split\n,train\n", r"Without: .*leaks.csv, row 2: expected a value for key"),
    ],
)
def test_a_list_that_cannot_be_read_is_an_error(root, tmp_path, content, message):
    path = tmp_path / "leaks.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SourceError, match=message):
        sources.Without(sources.Folder(), path).scan(root)
