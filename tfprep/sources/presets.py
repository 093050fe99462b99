"""Public data sets of images with masks: `Paired` with their folders, numbers and colours."""

from __future__ import annotations

from tfprep.sources.layout import Splits
from tfprep.sources.paired import Paired

CITYSCAPES_CLASSES = (
    *(
        "road",
        "sidewalk",
        "building",
        "wall",
        "fence",
        "pole",
        "traffic light",
        "traffic sign",
        "vegetation",
        "terrain",
    ),
    *("sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The `id` of each of these classes in `labelIds.png`
(https://github.com/mcordts/cityscapesScripts/blob/master/cityscapesscripts/helpers/labels.py)."""

CAMVID_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign"),
    *("fence", "car", "pedestrian", "bicyclist", "void"),
)
_CAMVID_COLOURS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "sky": ((128, 128, 128),),
    "building": ((128, 0, 0), (64, 192, 0), (0, 128, 64), (192, 0, 128), (64, 0, 64)),
    "pole": ((192, 192, 128), (0, 0, 64)),
    "road": ((128, 64, 128), (128, 0, 192), (192, 0, 64)),
    "pavement": ((0, 0, 192), (64, 192, 128), (128, 128, 192)),
    "tree": ((128, 128, 0), (192, 192, 0)),
    "sign": ((192, 128, 128), (128, 128, 64), (0, 64, 64)),
    "fence": ((64, 64, 128),),
    "car": ((64, 0, 128), (64, 128, 192), (192, 128, 192), (192, 64, 128), (128, 64, 64)),
    "pedestrian": ((64, 64, 0), (192, 128, 64), (64, 0, 192), (64, 128, 64)),
    "bicyclist": ((0, 128, 192), (192, 0, 192)),
    "void": ((0, 0, 0),),
}
"""The 32 colours of `label_colors.txt`, in the 11 classes of Sturgess et al., 'Combining Appearance and Structure from Motion
Features for Road Scene Understanding', BMVC 2009, and void."""
_IGNORED = 255


def cityscapes(annotations: str = "gtFine", splits: Splits = ("train", "val")) -> Paired:
    """Return the source of Cityscapes: 19 classes by their train ids, and 255 for what its benchmark ignores.

    The root holds `leftImg8bit/{split}/{city}/*_leftImg8bit.png` and `gtFine/{split}/{city}/*_gtFine_labelIds.png`. Give the
    recipe `fill={"mask": 255}`.

    Args:
        annotations: "gtFine" or "gtCoarse".
        splits: The splits to take; the masks of "test" are not public.
    """
    numbers: dict[int | None, int] = {number: train_id for train_id, number in enumerate(_CITYSCAPES_IDS)}
    return Paired(
        image="leftImg8bit/{split}/{city}/*_leftImg8bit.png",
        mask=f"{annotations}/{{split}}/{{city}}/*_{annotations}_labelIds.png",
        classes=CITYSCAPES_CLASSES,
        numbers={**numbers, None: _IGNORED},
        splits=splits,
    )


def ade20k(splits: Splits = None) -> Paired:
    """Return the source of ADE20K's scene parsing benchmark (`ADEChallengeData2016`): 150 classes from 0, and 255 for 0, all
    others.

    The root holds `images/{split}/*.jpg` and `annotations/{split}/*.png`, with the splits "training" and "validation". Give the
    recipe `fill={"mask": 255}`.
    """
    numbers: dict[int | None, int] = {0: _IGNORED, **{number: number - 1 for number in range(1, 151)}}
    return Paired(image="images/{split}/*.jpg", mask="annotations/{split}/*.png", numbers=numbers, splits=splits)


def camvid(splits: Splits = None) -> Paired:
    """Return the source of CamVid as it was published: 701 frames in one folder, masks of 32 colours, here 11 classes and void.

    The root holds `701_StillsRaw_full/*.png` and `LabeledApproved_full/*_L.png`. The class numbers are those of the SegNet
    tutorial's copy, whose masks hold numbers: `Paired(image="{split}/*.png", mask="{split}annot/*.png")` reads that one.
    """
    palette = {colour: CAMVID_CLASSES.index(name) for name, colours in _CAMVID_COLOURS.items() for colour in colours}
    return Paired(
        image="701_StillsRaw_full/*.png",
        mask="LabeledApproved_full/*_L.png",
        classes=CAMVID_CLASSES,
        palette=palette,
        splits=splits,
    )
