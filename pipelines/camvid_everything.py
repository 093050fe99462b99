"""CamVid with a good part of what tfprep can do in one recipe: nine derived inputs, eight geometry ops, policies.

Not a recipe to train from: one to look at, and to take lines out of. At 160 x 224 a record holds about 1 MB.
Data: see data/README.md.
Run: tfprep build pipelines/camvid_everything.py --data data/camvid --out out/everything
"""

from tfprep import Recipe, augment, codecs, derive, sources

CAR, VOID = 8, 11
OBJECT_VOID = 255  # what OneObject writes for void

RECIPE = Recipe(
    name="everything",
    source=sources.Paired(image="{split}/*.png", mask="{split}annot/*.png"),
    geometry=[
        augment.Flip(p=0.5),
        augment.OneOf([augment.Rotate(15), augment.Shear(10), augment.Perspective(0.2)]),
        augment.Maybe(augment.Elastic(40, 8), p=0.3),
        augment.Scale((0.8, 1.2)),
        augment.RandAugment(n=1, m=5),
        augment.Resize(shorter=180),
        augment.Crop(160, 224),
    ],
    derive={
        "car": derive.OneObject(mask="mask", target=CAR, void=VOID),
        "points": derive.ClickPoints(mask="car", target=1, void=OBJECT_VOID),
        "clicks": derive.ClickMaps(points="points"),
        "distance": derive.Distance(mask="car", target=1, truncate_px=255),
        "signed": derive.SignedDistance(mask="car", target=1, void=OBJECT_VOID),
        "edges": derive.Boundaries(mask="mask", void=VOID),
        "weights": derive.UNetWeights(mask="mask", instances=False, void=VOID),
        "onehot": derive.OneHot(mask="mask", classes=11, ignore=VOID),
        "sobel": derive.Sobel(),
    },
    color=[
        augment.SomeOf(
            [augment.Brightness(0.2), augment.Contrast(0.2), augment.Gamma((0.8, 1.25)), augment.Hue(0.03)], 2
        ),
        augment.Maybe(
            augment.OneOf([augment.Blur((0.5, 1.5)), augment.Noise((2.0, 8.0)), augment.JpegArtifacts((40, 80))]), p=0.5
        ),
    ],
    variants={"train": 3},
    fill={"mask": VOID},
    store={
        "image": codecs.Jpeg(95),
        **dict.fromkeys(("mask", "car", "edges", "clicks", "onehot"), codecs.Zstd()),
        **dict.fromkeys(("distance", "signed", "weights", "sobel"), codecs.Zstd(dtype="float16")),
    },
    seed=5,
)
