"""CamVid, interactive segmentation after Xu et al. 2016: RGB + two click-distance maps, 4 variants.

The object is the car (class 8). Image and clicks are stored raw: at 320 x 320 that is 0.6 MB a record, and nothing is left
to decode when it is read. As `codecs.Zstd()` they take 0.28 of that.
Data: see data/README.md.
Run: tfprep build pipelines/camvid_clicks.py --data data/camvid --out out/clicks
"""

from tfprep import Recipe, augment, codecs, derive, sources

CAR, VOID = 8, 11

RECIPE = Recipe(
    name="camvid_clicks",
    source=sources.Paired(image="{split}/*.png", mask="{split}annot/*.png"),
    geometry=[augment.Flip(p=0.5), augment.Rotate(degrees=10), augment.Crop(320, 320)],
    color=[augment.Brightness(0.2), augment.Contrast(0.2)],
    derive={"clicks": derive.Clicks(mask="mask", target=CAR, background=None, void=VOID, truncate_px=255)},
    variants={"train": 4},
    fill={"mask": VOID},
    store={"image": codecs.Raw(), "mask": codecs.Raw(), "clicks": codecs.Raw()},
    seed=7,
)
