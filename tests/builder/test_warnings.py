"""Files that can be decoded although the decoder warns: kept and listed, or rejected."""

import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.errors import BuildError

STORE = {"image": codecs.Png(), "label": codecs.Scalar()}


@pytest.fixture
def root(tmp_path):
    """Four whole photos, one without its end marker, one that is damaged inside."""
    for number in range(6):
        shades = np.random.default_rng(number).integers(0, 256, (6, 8, 3)).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(shades).resize((80, 60), Image.Resampling.BICUBIC).save(file, "JPEG")
        data = file.getvalue()
        path = tmp_path / "raw" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes({1: data[:-2], 4: data[:-300] + data[-2:]}.get(number, data))
    return tmp_path


def build(root, **options):
    recipe = Recipe("photos", sources.Folder(), STORE)
    return tfprep.build(recipe, root / "out", root / "raw", options=BuildOptions(workers=0, **options))


@pytest.mark.usefixtures("reports")
def test_warned_samples_are_kept_and_listed_or_rejected(root):
    with pytest.warns(UserWarning, match="2 samples have warnings, such as damaged files"):
        assert build(root).samples == 6
    page = (root / "out/current/report.html").read_text()
    assert "b/1.jpg: image: the end marker of the JPEG is missing" in page
    assert "a/4.jpg: image: Corrupt JPEG data: premature end of data segment" in page
    summary = build(root, on_warning="reject")
    assert (summary.samples, summary.rejected) == (4, 2)
    rejected = map(json.loads, (root / "out/current/rejects.jsonl").read_text().splitlines())
    assert {one["key"]: one["stage"] for one in rejected} == {"b/1.jpg": "decode", "a/4.jpg": "decode"}
    assert build(root, on_warning="reject").built_shards == 0
    with pytest.warns(UserWarning, match="2 samples have warnings"):
        assert build(root).samples == 6


def test_originals_without_an_end_are_stored_as_other_readers_take_them(root):
    recipe = Recipe("photos", sources.Folder(), {"image": codecs.Original()})
    with pytest.warns(UserWarning, match="samples have warnings"):
        tfprep.build(recipe, root / "out", root / "raw", options=BuildOptions(workers=0))
    for batch in tfprep.open(root / "out").numpy_loader("train", 1, training=False, fields=["image", "key"]):
        if batch["key"][0] == "b/1.jpg":
            whole = (root / "raw/b/1.jpg").read_bytes() + b"\xff\xd9"
            assert np.array_equal(batch["image"][0], np.asarray(Image.open(io.BytesIO(whole))))


@pytest.mark.usefixtures("reports")
def test_a_split_that_is_gone_from_the_raw_files_is_named(site):
    site.change_recipe('"train": 4, "val": 2', '"train": 2')
    site.fill(train=4, val=2).build()
    shutil.rmtree(site.data / "val")
    with pytest.warns(UserWarning, match="the split 'val' is gone: the raw data has no sample of it any more"):
        site.build()
    assert "the split &#39;val&#39; is gone" in (site.out / "current/report.html").read_text()


def test_options_are_checked():
    with pytest.raises(BuildError, match="on_warning is 'keep' or 'reject', not 'drop'"):
        BuildOptions(on_warning="drop")
