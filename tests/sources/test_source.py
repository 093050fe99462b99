"""The limits of raw files, patterns, and the `repr` of a source, which rebuilds it."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfprep import sources
from tfprep.errors import RecipeError, SampleError
from tfprep.sources.patterns import compile_pattern


def group_of(key):
    return key.split("_", maxsplit=1)[0]


def test_a_file_larger_than_the_limit_is_not_read(tmp_path):
    with open(tmp_path / "i.jpg", "wb") as file:
        file.truncate(200_000_000_000)  # sparse: it takes no space
    tracemalloc.start()
    with pytest.raises(SampleError, match=r"200,000,000,000 bytes, more than the limit of 1,073,741,824") as caught:
        sources.read_files(tmp_path, ("image",), sources.Entry("k", "train", ("i.jpg",)))
    assert (caught.value.stage, caught.value.field, caught.value.path) == ("read", "image", "i.jpg")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_path_with_a_null_rejects_the_sample(tmp_path):
    with pytest.raises(SampleError, match="null"):
        sources.read_files(tmp_path, ("image",), sources.Entry("k", "train", ("a\0.png",)))


@pytest.mark.parametrize(
    "source",
    [
        sources.Folder(),
        sources.Folder("{split}/{label}/**", splits=("train", "val"), classes=("cat", "dog")),
        sources.Folder(splits=sources.Fractions(train=0.7, val=0.2, test=0.1, seed=3, stratify="label")),
        sources.Folder("**", splits=sources.Fractions(train=0.5, test=0.5, group_by=r"^(\w+)_'\"")),
        sources.Paired("i/*.png", "m/*.png", fields={"depth": ("map", "d/*.png")}, classes=("sky", "road")),
        sources.Table(
            "t.csv", "p", "c", {"age": ("scalar", "a")}, {"label": ("x", "y")}, sources.Fractions(train=1.0), key="id"
        ),
        sources.Table("{split}.jsonl", image="images/{id}.png"),
        sources.Archives("{split}/*.tar", label="cls", fields={"text": ("text", "txt")}),
        sources.Video("{label}/*.mkv", every=2, splits=sources.Fractions(train=0.5, val=0.5)),
        sources.Coco(fields=("boxes", "mask"), unannotated="skip", void=65535),
        sources.Voc(first_pixel=0),
        sources.Without(sources.Folder(), "leaks.csv"),
        sources.Fractions(train=0.5, val=0.5, group_by=sources.GroupFile("groups.csv")),
        sources.Pixels(exif="ignore", background=(9, 99, 199)),
        sources.Folder("**", pixels={"image": sources.Pixels(to="uint8", low=1000, high=3000, channels=(2, 0))}),
    ],
)
def test_repr_rebuilds_the_source(source):
    assert eval(repr(source), {"sources": sources}) == source


def test_repr_names_what_is_not_the_default_and_functions_by_module():
    assert repr(sources.Folder()) == "sources.Folder()"
    spelled = repr(sources.Fractions(train=1.0, group_by=group_of))
    assert spelled == f"sources.Fractions(train=1.0, group_by={group_of.__module__}.group_of)"


CASES = [
    ("{label}/**", "cat/1.jpg", {"label": "cat", "__": "", "_1": "1"}),
    ("{label}/**", "cat/a/b/1.jpg", {"label": "cat", "__": "a/b/", "_1": "1"}),
    ("{label}/**", "1.jpg", None),
    ("{label}/**", "cat/notes.txt", None),
    ("**", "1.TIFF", {"__": "", "_1": "1"}),
    ("**", "a/1.Jpeg", {"__": "a/", "_1": "1"}),
    ("*", "a/1.jpg", None),
    ("{split}/*.png", "train/1.PNG", {"split": "train", "_1": "1"}),
    ("{split}/*.png", "train/1.jpg", None),
    ("{split}/*.PNG", "train/1.png", {"split": "train", "_1": "1"}),
    ("{split}/*.png", "train/a/1.png", None),
    ("{split}annot/*.png", "trainannot/1.png", {"split": "train", "_1": "1"}),
    ("{split}annot/*.png", "annot/1.png", None),
    ("{a}_{b}.png", "x_y_z.png", {"a": "x_y", "b": "z"}),
    ("{split}/**/masks/{key}_m.png", "val/p/q/masks/7_m.png", {"split": "val", "__": "p/q/", "key": "7"}),
    ("{split}/**/masks/{key}_m.png", "val/masks/7_m.png", {"split": "val", "__": "", "key": "7"}),
    ("{split}/**/masks/{key}_m.png", "val/p/7_m.png", None),
    ("{a}/{a}.png", "x/x.png", {"a": "x"}),
    ("{a}/{a}.png", "x/y.png", None),
    ("{a}-{a}/*.png", "x-x/y.png", {"a": "x", "_1": "y"}),
    ("{a}-{a}/*.png", "x-z/y.png", None),
    ("scans/*.nii.gz", "scans/1.nii.gz", {"_1": "1"}),
    ("a+b (1)/[x]*.png", "a+b (1)/[x]1.png", {"_1": "1"}),
    ("*/*.npy", "a\nb/c.npy", {"_1": "a\nb", "_2": "c"}),
]


@pytest.mark.parametrize(("pattern", "path", "holes"), CASES)
def test_match(pattern, path, holes):
    compiled = compile_pattern(pattern, "image")
    assert compiled.match_path(path) == holes
    if holes is not None:  # filling gives the path back, without its suffix
        filled = compiled.fill(holes)
        assert path.startswith(filled + ".")
        assert compiled.suffix is None or path[len(filled) :].lower() == compiled.suffix


NAMES = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=5)


@given(st.lists(NAMES, max_size=3), NAMES, NAMES, NAMES)
def test_a_filled_pattern_matches_again(deep, split, label, key):
    pattern = compile_pattern("{split}/x-{label}/**/{key}.png", "image")
    holes = {"split": split, "label": label, "__": "".join(f"{name}/" for name in deep), "key": key}
    assert pattern.match_path(pattern.fill(holes) + ".png") == holes


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "expected a path relative"),
        ("/data/*.png", "expected a path relative"),
        ("a//b.png", "expected a path relative"),
        ("../a/*.png", "expected a path relative"),
        ("a\\*.png", "expected a path relative"),
        ("**/a/**/*.png", "at most one '\\*\\*'"),
        ("a**/*.png", "a folder of its own"),
        ("{a}{b}.png", "some text between"),
        ("{a}*.png", "some text between"),
        ("{a b}/*.png", "placeholders like"),
        ("{split/*.png", "placeholders like"),
        ("{}/*.png", "placeholders like"),
    ],
)
def test_a_mistake_names_the_option_the_rule_and_the_pattern(pattern, message):
    with pytest.raises(RecipeError, match=message) as caught:
        compile_pattern(pattern, "Folder: image")
    assert str(caught.value).startswith("Folder: image: ")
    assert str(caught.value).endswith(repr(pattern))
