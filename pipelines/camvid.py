"""CamVid, semantic segmentation: RGB, classes 0 to 11 (11 = void), and the signed distance to the road's boundary.

Data: see data/README.md.
Run: tfprep build pipelines/camvid.py --data data/camvid --out out/camvid
"""

from tfprep import Recipe, augment, codecs, derive, sources

CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign"),
    *("fence", "car", "pedestrian", "bicyclist", "void"),
)
VOID = CLASSES.index("void")

RECIPE = Recipe(
    name="camvid",
    source=sources.Paired(image="{split}/*.png", mask="{split}annot/*.png", classes=CLASSES),
    geometry=[augment.Flip(p=0.5), augment.Rotate(degrees=5), augment.Scale((0.9, 1.3))],
    color=[augment.Brightness(0.2), augment.Contrast(0.2), augment.Hue(0.02)],
    derive={"road": derive.SignedDistance(mask="mask", target=CLASSES.index("road"), void=VOID)},
    variants={"train": 3},
    fill={"mask": VOID},
    store={"image": codecs.Jpeg(95), "mask": codecs.Zstd(), "road": codecs.Zstd(dtype="float16")},
    seed=7,
)
