"""Recipes: what they accept, how they describe themselves, and their error messages."""

import re
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.errors import RecipeError
from tfprep.recipe.file import data_root, load_recipe
from tfprep.sources import Listing

PIPELINES = sorted((Path(__file__).parents[2] / "pipelines").glob("*.py"))


def recipe(**options):
    return Recipe(**{"name": "r", "source": sources.Folder(), "store": {"image": codecs.Jpeg()}, **options})


class WrongKind:
    kind = "picture"

    def __call__(self, sample, generator):
        return sample["image"]


def listing(**kinds):
    return Listing(kinds or {"image": "image", "label": "label"}, ("image",), ("label",), iter(()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "my data"}, "a letter followed by letters, digits and '_', at most 100, not 'my data'"),
        ({"name": "x_v2"}, "ends like a variant"),
        ({"source": "photos"}, r"source: expected a source such as sources\.Folder\(\), not 'photos'"),
        ({"store": {}}, "store: nothing would be stored"),
        ({"store": [codecs.Jpeg()]}, "store: expected a dict"),
        ({"store": {"image": codecs.Jpeg}}, r"store\['image'\]: expected a codec .* call it: Jpeg\(\)"),
        ({"store": {1: codecs.Jpeg()}}, "a name is a string, not 1"),
        ({"geometry": augment.Flip()}, r"geometry: expected a list of ops, not Flip\("),
        ({"geometry": [augment.Flip]}, r"geometry\[0\]: expected an op or a function, .* call it: Flip\(\)"),
        ({"color": [0.2]}, r"color\[0\]: expected an op or a function, not 0\.2"),
        ({"derive": {"d": 3}}, r"derive\['d'\]: expected a derived input or a function, not 3"),
        ({"variants": 4}, "variants: expected a dict"),
        ({"variants": {"train": 0}}, r"variants\['train'\]: expected a whole number from 1, not 0"),
        ({"shards": {"train": True}}, "not True"),
        ({"fill": {"mask": "void"}}, "one per channel, not 'void'"),
        ({"fill": {"image": (0, "black")}}, "a number, or a tuple of one per channel"),
        ({"min_visible": 2}, "min_visible: expected a share from 0 to 1, not 2"),
        ({"row_fields": {"boxes": "labels"}}, r"row_fields\['boxes'\]: expected a list of field names, not 'labels'"),
        *[({"seed": seed}, "seed: expected a whole number, not") for seed in ("x", None, 1.5, True)],
        ({"depends": "x"}, "depends: expected a list"),
        ({"min_visible": "much"}, "min_visible: expected a share from 0 to 1, not 'much'"),
        ({"dct_downscale": "yes"}, "dct_downscale: expected True or False"),
        ({"name": 3}, "a letter followed by letters"),
        ({"source": sources.Folder}, r"source: expected a source such as sources\.Folder\(\), .*; call it: Folder\(\)"),
        ({"store": {"image": "jpeg"}}, r"store\['image'\]: expected a codec such as codecs\.Jpeg\(\), not 'jpeg'"),
        ({"store": {"../../evil": codecs.Jpeg()}}, r"store: the name of a field is a letter or '_', .*not '\.\./\.\./evil'"),
        ({"derive": {"a/b": np.copy}}, "derive: the name of a field is"),
        ({"derive": {"key": np.copy}}, "the loader itself adds the field 'key'"),
        ({"store": {"x" * 200: codecs.Jpeg()}}, "at most 100 characters"),
        ({"derive": {"d": WrongKind()}}, r"derive\['d'\]: the attribute kind is one of image, .*, not 'picture'"),
        ({"row_fields": {"boxes": [3]}}, r"row_fields\['boxes'\]: expected a list of field names, not \[3\]"),
        ({"color": [augment.Flip()]}, r"color\[0\]: Flip\(.*\) moves pixels; it belongs in geometry=\[\.\.\.\]"),
        ({"geometry": [augment.Flip(), augment.Hue(0.1)]}, r"geometry\[1\]: Hue.* changes colors; it belongs in color="),
        ({"geometry": [augment.Maybe(augment.OneOf([augment.Blur((1, 2))]))]}, "it belongs in color="),
        ({"color": [augment.RandAugment()]}, "it belongs in geometry="),
        ({"color": [augment.Custom(np.copy)]}, "it belongs in geometry="),
        *[
            (
                {"geometry": [augment.Flip(), op]},
                r"geometry\[1\]: Custom is a function of a whole sample, which \w+ does not have; put it",
            )
            for op in (
                augment.Maybe(augment.Custom(np.copy)),
                augment.OneOf([augment.Flip(), augment.Custom(np.copy)]),
                augment.SomeOf([augment.Maybe(augment.Custom(np.copy))], 1),
            )
        ],
        ({"geometry": [augment.Maybe(augment.Flip)]}, r"geometry\[0\]: expected an op or a function, .* call it: Flip\(\)"),
        ({"geometry": [augment.Maybe(3)]}, r"geometry\[0\]: expected an op or a function, not 3"),
        ({"border": "wrap"}, "'constant', 'reflect' or 'replicate', not 'wrap'"),
        ({"store": {"image": codecs.Original()}, "geometry": [augment.Flip()]}, "Original keeps the source's bytes, but"),
        ({"store": {"image": codecs.Original()}, "variants": {"train": 2}}, "Original keeps the source's bytes, but"),
    ],
)  # fmt: skip
def test_a_wrong_option_raises_with_rule_value_and_way_out(options, message):
    with pytest.raises(RecipeError, match=message):
        recipe(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": {"imgae": codecs.Jpeg()}}, "there is no field 'imgae'; there are image, label"),
        ({"store": {"label": codecs.Jpeg()}}, r"'label' has the kind label: use Scalar\(\)"),
        ({"derive": {"image": np.copy}}, "the source already has a field 'image'"),
        ({"row_fields": {"boxes": ["labels"]}}, "row_fields: there is no field"),
        ({"fill": {"label": 3}}, "no image, mask or map named 'label'"),
        (
            {"derive": {"clicks": derive.Clicks(mask="mask")}},
            r"derive\['clicks'\]: Clicks\(mask='mask'\) names no field that is there; there are image, label",
        ),
        (
            {"derive": {"d": derive.Distance(mask="image")}},
            "needs a field of the kind map or mask; 'image' has the kind image",
        ),
        (
            {"derive": {"maps": derive.ClickMaps(points="p", like="image"), "p": derive.ClickPoints(mask="m")}},
            r"ClickMaps\(points='p'\) names no field that is there; derive it first",
        ),
    ],
)
def test_fields_are_checked_against_the_source(options, message):
    with pytest.raises(RecipeError, match=message):
        recipe(**options).check_fields(listing())


def test_coordinates_that_geometry_does_not_move_are_no_clicks():
    fields, maps = listing(image="image", age="scalar"), {"maps": derive.ClickMaps(points="age", like="image")}
    recipe(derive=maps).check_fields(fields)
    with pytest.raises(RecipeError, match="geometry does not move 'age', which is a scalar; declare points"):
        recipe(derive=maps, geometry=[augment.Flip()]).check_fields(fields)


@pytest.mark.parametrize(
    "derived", [derive.UNetWeights, derive.OneInstance, derive.InstanceCenters, derive.InstanceBoxes]
)
def test_void_of_a_mask_is_no_object(derived):
    """`fill` declares the number that stands for void, and so does a source with an attribute `void`."""
    masks = listing(image="image", mask="mask")
    with pytest.raises(
        RecipeError, match=rf"'mask' has 255 for void, and {derived.__name__} without void= .* write void=255"
    ):
        recipe(derive={"d": derived(mask="mask")}, fill={"mask": 255}).check_fields(masks)
    with pytest.raises(RecipeError, match="write void=255"):
        recipe(derive={"d": derived(mask="mask", void=254)}, fill={"mask": 255}).check_fields(masks)
    recipe(derive={"d": derived(mask="mask", void=255)}, fill={"mask": 255}).check_fields(masks)
    recipe(derive={"d": derived(mask="mask")}, fill={"mask": 0}).check_fields(masks)
    recipe(derive={"d": derived(mask="mask")}).check_fields(masks)


UNCOVERING = [
    augment.Rotate(5), augment.Scale((0.9, 1)), augment.Shear(3), augment.Translate(0.1), augment.Elastic(),
    augment.RandAugment(), augment.TrivialAugment(), augment.Resize(8, 9, pad=True),
    augment.Maybe(augment.OneOf([augment.Flip(), augment.Rotate()])),
]  # fmt: skip
COVERED = [
    augment.Flip(), augment.Rotate90(), augment.Scale((1, 2)), augment.Crop(8, 8), augment.Resize(8, 9), augment.Perspective(),
    augment.RandomResizedCrop(8, 8), augment.Maybe(augment.Flip()), augment.Custom(np.copy),
]  # fmt: skip


def test_every_geometry_op_says_if_it_shows_what_is_outside():
    """Masks of class 0 would be invented there: the recipe names the number of void pixels."""
    listed = listing(image="image", mask="mask")
    for op in UNCOVERING:
        with pytest.raises(
            RecipeError, match=r'fill: .* shows pixels outside of the image.*write fill=\{"mask": 255\}'
        ):
            recipe(geometry=[augment.Flip(), op]).check_fields(listed)
        recipe(geometry=[op], fill={"mask": 0}).check_fields(listed)
        recipe(geometry=[op], border="reflect").check_fields(listed)
        recipe(geometry=[op]).check_fields(listing(image="image"))
    for op in COVERED:
        recipe(geometry=[op]).check_fields(listed)


def test_the_void_of_a_source_is_that_of_fill_and_of_derived_inputs():
    source = sources.Paired(image="*.jpg", mask="*.png", void=11)
    clicks, other = derive.Clicks(mask="mask", target=8), derive.Clicks(mask="clicks", target=8)
    made = recipe(source=source, geometry=[augment.Rotate()], derive={"clicks": clicks, "other": other})
    assert made.fill == {"mask": 11}
    assert made.derive == {"clicks": replace(clicks, void=11), "other": other}
    own = recipe(source=source, derive={"clicks": replace(clicks, void=3)}, fill={"mask": 3, "image": 1})
    assert own.fill == {"mask": 3, "image": 1}
    assert own.derive["clicks"].void == 3
    assert recipe(source=sources.Without(source, "leaks.csv")).fill == {"mask": 11}
    assert recipe(source=sources.cityscapes()).fill == {"mask": 255}
    assert recipe(source=sources.Coco(fields=("boxes", "mask"), void=254)).fill == {"mask": 254}


def test_boxes_of_a_table_name_the_fields_with_their_rows():
    listed = listing(image="image", boxes="boxes", labels="label", age="scalar")
    for crop in (augment.Crop(8, 8), augment.Maybe(augment.Rotate()), lambda size, draws: None):
        with pytest.raises(RecipeError, match=r"write row_fields=\{'boxes': \['labels', 'age'\]\} with those"):
            recipe(geometry=[crop]).check_fields(listed)
        recipe(geometry=[crop], row_fields={"boxes": []}).check_fields(listed)
        recipe(geometry=[crop]).check_fields(listing(image="image", boxes="boxes"))
    whole = [augment.Flip(), augment.Maybe(augment.Rotate90()), augment.Resize(8, 8, pad=True)]
    recipe(geometry=whole).check_fields(listed)


def test_geometry_needs_a_field_of_pixels():
    boxes = recipe(store={"boxes": codecs.Scalar()}, geometry=[augment.Flip()])
    with pytest.raises(RecipeError, match="geometry: the source has no image, mask or map, whose size Flip"):
        boxes.check_fields(listing(boxes="boxes"))
    boxes.check_fields(listing(boxes="boxes", image="image"))


def test_rows_of_boxes_are_not_other_boxes_or_pixels():
    for kind in ("boxes", "image", "map", "text"):
        with pytest.raises(
            RecipeError, match=f"row_fields: 'other' has the kind {kind}, whose rows do not follow 'boxes'"
        ):
            recipe(row_fields={"boxes": ["other"]}).check_fields(listing(image="image", boxes="boxes", other=kind))


def pose(**options):
    recipe(**options).check_fields(listing(image="image", pose="points"))


SWAP = {"pose": (0, 2, 1)}
FLIPS = [
    augment.Flip(),
    augment.Maybe(augment.OneOf([augment.Rotate(), augment.Flip()]), 0.5),
    lambda size, draws: None,
]
ORDERED = [
    {"store": {"pose": codecs.Scalar()}},
    {"derive": {"maps": derive.Heatmaps(points="pose")}},
    {"derive": {"maps": derive.Heatmaps(points="pose", channels=17)}},
    {"derive": {"bones": lambda sample, generator: sample["pose"]}},
]


@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize("options", ORDERED)
def test_points_in_order_that_geometry_may_mirror_need_their_partners(flip, options):
    with pytest.raises(
        RecipeError, match=r"may mirror 'pose', .*flip_indices=\{'pose': \(0, 2, 1\)\} .*'pose': \(\)\}"
    ):
        pose(geometry=[augment.Resize(64, 64), flip], **options)
    pose(geometry=[flip], flip_indices=SWAP, **options)
    pose(geometry=[flip], flip_indices={"pose": ()}, **options)


@pytest.mark.parametrize("options", ORDERED)
def test_points_need_no_partners_where_nothing_mirrors(options):
    turns = [augment.Rotate90(), augment.RandAugment(), augment.Perspective(), augment.Elastic()]
    pose(geometry=[*turns, augment.Custom(lambda sample, draws: sample)], **options)
    pose(geometry=[augment.Flip()], derive={"maps": derive.Heatmaps(points="pose", channels=1)})  # points without order


@pytest.mark.parametrize("rows", [(1, 2, 0), (0, 0, 1), (1, 2), (0.0, 1), 3, "ab"])
def test_flip_indices_exchange_rows_of_points(rows):
    with pytest.raises(RecipeError, match=r"flip_indices\['pose'\]: expected the row that takes the place of each row"):
        recipe(flip_indices={"pose": rows})
    with pytest.raises(RecipeError, match="flip_indices: the source has no points named 'image'; there are pose"):
        pose(flip_indices={"image": (1, 0)})


def test_derived_inputs_can_be_stored_by_their_kind():
    made = recipe(derive={"d": lambda sample, generator: sample["image"]}, store={"d": codecs.Raw()})
    made.check_fields(listing())
    with pytest.raises(RecipeError, match="there is no split 'trian'; there are train, val"):
        recipe(variants={"trian": 2}).check_splits(["train", "val"])


# --- fingerprint ----------------------------------------------------------------------------------------------------


CHANGES: list[dict] = [  # of code: tests/recipe/test_code.py
    {"seed": 1},
    {"name": "q"},
    {"border": "reflect"},
    {"fill": {"image": 1}},
    {"min_visible": 0.3},
    {"flip_indices": {"points": (1, 0)}},
    {"geometry": [augment.Flip(p=0.4)]},
    {"geometry": [augment.Flip(p=0.5)]},
    {"color": [augment.Brightness(0.1)]},
    {"store": {"image": codecs.Jpeg(94)}},
    {"store": {"image": codecs.Png()}},
    {"variants": {"train": 2}},
    {"dct_downscale": False},
    {"derive": {"d": derive.Distance(mask="mask", target=1)}},
]


def test_every_change_that_changes_bytes_changes_the_fingerprint():
    fingerprints, same = ([recipe(**change).fingerprint("train") for change in ({}, *CHANGES)] for _ in range(2))
    assert fingerprints == same
    assert len(set(fingerprints)) == len(fingerprints)


def test_names_have_no_order_in_a_fingerprint_and_variants_are_of_their_split():
    fills = {"image": 1, "mask": 2}
    turned = recipe(fill=dict(reversed(fills.items())))
    assert turned.fingerprint() == recipe(fill=fills).fingerprint()
    two, three = recipe(variants={"train": 2}), recipe(variants={"train": 3})
    assert two.fingerprint("val") == three.fingerprint("val") != two.fingerprint("train")


def test_labels_that_become_vectors_are_part_of_the_fingerprint():
    source = sources.Folder()
    before = recipe(source=source).fingerprint("train")
    object.__setattr__(source, "multi_hot", lambda: ("label",))
    assert recipe(source=source).fingerprint("train") != before


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "recipe.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


GOOD = """
    from tfprep import Recipe, augment, codecs, derive, sources
    DATA = "raw"
    RECIPE = Recipe(
        name="r",
        source=sources.Folder(),
        geometry=[
            augment.Flip(),
        ],
        store={
            "image": codecs.Jpeg(),
            "label": codecs.Scalar(),
        },
    )
"""


def test_a_file_is_loaded_with_its_data_root(write):
    path = write(GOOD)
    assert load_recipe(path).name == "r"
    assert data_root(path) == path.parent / "raw"
    assert data_root(write(GOOD.replace('DATA = "raw"', ""))) == Path.cwd()


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("augment.Flip()", "augment.Flip(p=2)", 8, "augment.Flip(p=2)"),
        ("augment.Flip()", "augment.Flop()", 8, "AttributeError"),
        ("codecs.Jpeg()", "codecs.Jpeg(0)", 11, "from 1 to 100, got 0"),
        ("codecs.Jpeg()", "codecs.Jpeg", 4, "store['image']: expected a codec"),
        ("geometry=[", "geometri=[", 4, "TypeError"),
        ("store={", "store={,", 10, "not Python"),
    ],
)
def test_a_mistake_in_a_file_says_which_line(write, old, new, line, message):
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(GOOD.replace(old, new)))
    assert f"line {line}:" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"expected RECIPE = tfprep\.Recipe\(\.\.\.\), found no RECIPE"),
        ("RECIPE = 3", "found RECIPE = 3"),
        (GOOD.replace("RECIPE =", "photos ="), "found no RECIPE"),
        ("raise SystemExit('bye')", "line 1: SystemExit: bye"),
    ],
)
def test_a_file_without_a_recipe(write, text, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(text))


def test_a_file_is_compiled_as_it_is(write):
    """Without the future statements of tfprep's own modules."""
    load_recipe(write("def f(x: int): ...\nassert f.__annotations__ == {'x': int}\n" + textwrap.dedent(GOOD)))


def test_no_file_and_not_a_python_file(tmp_path):
    with pytest.raises(RecipeError, match="is a folder; give the recipe's file, or let 'tfprep init"):
        load_recipe(tmp_path)
    with pytest.raises(RecipeError, match="no such recipe; 'tfprep init FOLDER' writes one"):
        load_recipe(tmp_path / "none.py")
    (tmp_path / "recipe.txt").write_text("")
    with pytest.raises(RecipeError, match=r"ends in \.py"):
        load_recipe(tmp_path / "recipe.txt")


@pytest.mark.parametrize("path", [p for p in PIPELINES if "RECIPE" in p.read_text()], ids=lambda path: path.stem)
def test_every_recipe_of_the_project_loads_and_documents_its_command(path):
    assert load_recipe(path).fingerprint()
    assert re.search(rf"Run: tfprep build (pipelines/)?{path.name} --data ", path.read_text())


def test_a_recipe_stays_as_it_was_checked():
    given = {"geometry": [], "variants": {}, "store": {"image": codecs.Original()}}
    made = recipe(**given)
    given["geometry"].append(augment.Flip())
    given["variants"]["train"] = 2
    assert (made.geometry, made.variants) == ([], {})


def test_a_recipe_imports_the_modules_of_its_own_folder(tmp_path):
    """Also where this process has imported modules of the same names beside another recipe."""
    made = []
    for number in (1, 2, 1):
        folder = tmp_path / str(number)
        (folder / "package").mkdir(parents=True, exist_ok=True)
        (folder / "of_two_recipes.py").write_text(
            "from package.inner import NUMBER\ndef f(sample, draws): return NUMBER"
        )
        (folder / "package/inner.py").write_text(f"NUMBER = {number}")
        text = textwrap.dedent(GOOD).replace("source=", 'derive={"d": of_two_recipes.f, "own": own}, source=')
        (folder / "recipe.py").write_text(f"import of_two_recipes\ndef own(sample, draws): return {number}{text}")
        made.append((loaded := load_recipe(folder / "recipe.py"), loaded.fingerprint()))
        assert [derived({}, None) for derived in loaded.derive.values()] == [number, number]
        assert data_root(folder / "recipe.py") == folder / "raw"
    assert made[2][0].fingerprint() == made[2][1] == made[0][1] != made[1][1]
    for number in (1, 2):
        sys.path.remove(str(tmp_path / str(number)))


def test_replace_keeps_checking():
    with pytest.raises(RecipeError):
        replace(recipe(), border="x")
