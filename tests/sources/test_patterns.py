"""Patterns, compared with paths that are written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfprep.errors import RecipeError
from tfprep.sources.patterns import compile_pattern

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
def test_match(pattern: str, path: str, holes: dict[str, str] | None) -> None:
    assert compile_pattern(pattern, "image").match_path(path) == holes


@pytest.mark.parametrize(("pattern", "path", "holes"), [case for case in CASES if case[2] is not None])
def test_fill_gives_the_path_back_without_its_suffix(pattern: str, path: str, holes: dict[str, str]) -> None:
    compiled = compile_pattern(pattern, "image")
    filled = compiled.fill(holes)
    assert path.startswith(filled + ".")
    assert compiled.suffix is None or path[len(filled) :].lower() == compiled.suffix


NAMES = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=5)


@given(st.lists(NAMES, max_size=3), NAMES, NAMES, NAMES)
def test_a_filled_pattern_matches_again(deep: list[str], split: str, label: str, key: str) -> None:
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
def test_a_mistake_names_the_option_the_rule_and_the_pattern(pattern: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        compile_pattern(pattern, "Folder: image")
    assert str(caught.value).startswith("Folder: image: ")
    assert str(caught.value).endswith(repr(pattern))
