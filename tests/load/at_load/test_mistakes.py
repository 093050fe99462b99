"""Wrong ops at load, sizes, buckets and views: each error says the rule, and what to do. Those of boxes are in test_warps.py."""

import pytest

from tfprep import load
from tfprep.errors import LoaderError

ALONE = [
    (lambda: load.RandomFlip(1.5), "RandomFlip.p is a probability from 0 to 1"),
    (lambda: load.RandomFlip(True), "probability from 0 to 1"),
    (lambda: load.RandomCrop(0, 5), "RandomCrop.height is a whole number of pixels, at least 1"),
    (lambda: load.RandomCrop(5, 2.5), "a whole number of pixels, at least 1"),
    (lambda: load.MixUp(0), "a number above 0"),
    (lambda: load.CutMix(float("nan")), "a number above 0"),
    (lambda: load.CutMix(p=-0.1), "probability from 0 to 1"),
    (lambda: load.MixUp(classes=0), "a whole number, at least 1"),
    (lambda: load.OneHotLabels(classes=0), "a whole number, at least 1, got 0"),
    (lambda: load.RandomResizedCrop(224), r"takes height and width, RandomResizedCrop\(224, 224\)"),
    (lambda: load.RandomResizedCrop(-1, 5), "a whole number of pixels"),
    (lambda: load.RandomResizedCrop(5, 5, scale=(0.5, 0.1)), "a range"),
    (lambda: load.CenterCrop(5, 2.5), "a whole number of pixels"),
    (lambda: load.Resize(5), "Resize takes either"),
    (lambda: load.ColorJitter(40), "ColorJitter.brightness is a range"),
    (lambda: load.ColorJitter(p=2), "probability from 0 to 1"),
    (lambda: load.ColorJitter("a"), "an amount is a number or a range"),
    (lambda: load.ColorJitter(("a", 2)), "ColorJitter.brightness is a range"),
    (lambda: load.Grayscale("x"), "probability from 0 to 1"),
    (lambda: load.Solarize(threshold=300), "a level from 0 to 256"),
    (lambda: load.RandomErasing(area=(0.5, 0.1)), "a range"),
    (lambda: load.RandomErasing(level=None), "a whole number from 0 to 255"),
    (lambda: load.RandomResizedCrop(8, 8, sizes={0: 8}), "no other height and width"),
    (lambda: load.RandomResizedCrop(sizes={0: 8, -1: 9}), "no other height and width"),
    (lambda: load.RandomResizedCrop(sizes={0: (8, 9, 3)}), "pixels by the epoch"),
    (lambda: load.RandomResizedCrop(sizes={0: 8.5}), "a whole number of pixels"),
    (lambda: load.RandomResizedCrop(sizes=[8]), "pixels by the epoch"),
    (lambda: load.RandomResizedCrop(sizes=(0, 8)), "pixels by the epoch"),
    (lambda: load.RandomResizedCrop(sizes={1: 8}), "the first one 0"),
    (lambda: load.RandomResizedCrop(sizes={}), "the first one 0"),
    (lambda: load.RandomResizedCrop(sizes=7), "the first one 0"),
    (lambda: load.Buckets([]), "one size at least"),
    (lambda: load.Buckets([(5, 0)]), "pixels"),
    (lambda: load.Buckets([5]), "sizes"),
    (lambda: load.Buckets(5), "a list of one size at least"),
    (lambda: load.Buckets(None), "a list of one size at least"),
    (lambda: load.Buckets([(8, 8), (16, 16)]), "differ in their aspect ratios"),
]


@pytest.mark.parametrize(("make", "rule"), ALONE)
def test_an_op_with_wrong_options(make, rule):
    with pytest.raises(LoaderError, match=rule):
        make()


GROWING = load.RandomResizedCrop(sizes={0: 8, 2: (12, 16)})
BUCKET = {"bucket": load.Buckets([(16, 32), (24, 24), (32, 16)])}
IMAGE = {"fields": ["image"]}
LABELED = {"fields": ["image", "label"]}
LIST = r"a list of ops of tfprep\.load \(RandomFlip, RandomCrop, RandomResizedCrop"
COUNTS = "views gives the number of views by name"
USES = [
    (
        {"at_load": [load.RandomCrop(25, 32)]},
        r"RandomCrop\(25, 32\) of images of 24 x 32 pixels: crop less, or store larger images",
    ),
    ({"at_load": [load.RandomCrop(10, 10), load.RandomCrop(11, 5)]}, r"RandomCrop\(11, 5\) of images of 10 x 10"),
    ({"at_load": [load.Resize(20, 20), load.RandomCrop(21, 20)]}, r"RandomCrop\(21, 20\) of images of 20 x 20"),
    ({"at_load": [GROWING, load.RandomCrop(10, 10)]}, r"RandomCrop\(10, 10\) of images of 8 x 8"),
    ({"at_load": [load.MixUp(), load.RandomFlip()]}, "put them after flips and crops"),
    ({"at_load": [load.MixUp(), load.ColorJitter()]}, "put them after flips and crops, and color in between"),
    ({"at_load": [load.ColorJitter(), load.RandomFlip()]}, "put them after flips and crops, and color in between"),
    ({"at_load": [load.MixUp(), load.MixUp()]}, "one MixUp and one CutMix at most"),
    ({"at_load": load.RandomFlip()}, LIST),
    ({"at_load": ["flip"]}, LIST),
    ({"at_load": [load.MixUp()]}, "cannot mix the class numbers of 'mask'"),
    ({"at_load": [load.RandomFlip()], "fields": ["label"]}, "no image, mask or map is loaded"),
    ({"at_load": [load.ColorJitter()], "fields": ["mask"]}, "no image is loaded for ColorJitter"),
    ({"at_load": [load.OneHotLabels()], **IMAGE}, "no label is loaded for OneHotLabels"),
    ({"at_load": [load.MixUp(classes=4)], **LABELED}, r"said differently: \[3, 4\]"),
    ({"at_load": [load.OneHotLabels(classes=9)], **LABELED}, r"\[3, 9\]; write OneHotLabels\(..., classes=N\)"),
    ({"at_load": [load.RandomResizedCrop(9, 9)], "cache": "decoded", **IMAGE}, "the pixels would be others"),
    ({"geometry": [load.RandomFlip()]}, "RandomFlip.* is drawn anew; put it into at_load"),
    ({"geometry": [GROWING]}, "is drawn anew; put it into at_load"),
    ({"transforms": [load.RandomFlip()]}, r"no option 'transforms'; instead: at_load=\[RandomFlip"),
    ({"at_load": [GROWING, GROWING]}, "one RandomResizedCrop with sizes at most"),
    ({"bucket": [(8, 8)]}, r"bucket is Buckets\("),
    ({**BUCKET, "order": "block"}, "order='block' fills batches with what comes next"),
    ({**BUCKET, "balance": "label"}, "leave balance out"),
    ({**BUCKET, "geometry": [load.Resize(9, 9)]}, "leave geometry out"),
    ({**BUCKET, "weights": {0: 1, 1: 2, 2: 1}}, "leave weights out"),
    ({**BUCKET, "at_load": [load.Resize(9, 9)]}, "and Resize others"),
    ({**BUCKET, "fields": ["label"]}, "no image, mask or map is loaded"),
    ({**BUCKET, "batch_size": 51}, "fewer than batch_size=51: none of them would ever be seen"),
    ({"views": {"a": 2}}, COUNTS),
    ({"views": {"a": 0}, "at_load": {"a": []}}, COUNTS),
    ({"views": {}, "at_load": {}}, COUNTS),
    ({"views": {"a/b": 1}, "at_load": {"a/b": []}}, COUNTS),
    ({"views": {"a": 1}, "at_load": {"b": []}}, COUNTS),
    ({"at_load": {"a": []}}, COUNTS),
    ({"views": {"a": 1}, "at_load": {"a": [load.MixUp()]}}, "not for views"),
    ({"views": {"a": 1}, "at_load": {"a": [GROWING]}}, "not for views"),
    ({"views": {"a": 1}, "at_load": {"a": [load.RandomFlip()]}, **BUCKET}, "one of them at a time"),
]


@pytest.mark.parametrize(("options", "rule"), USES)
def test_ops_that_do_not_fit_the_loader(data, options, rule):
    with pytest.raises(LoaderError, match=rule):
        data.numpy_loader("train", **options)
