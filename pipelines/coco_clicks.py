"""COCO 2017, interactive segmentation after Xu et al. 2016: RGB, the mask of one object, and two click-distance maps.

One object of at least 400 pixels is drawn from the instances of each image, again for each variant; `object` is 1 for it, 2 for
all others, 0 for background and 255 for crowds. Without such an object no pixel is 1.
Data: see data/README.md; 118,287 training and 5,000 validation images, those without annotations are left out.
Run: tfprep build pipelines/coco_clicks.py --data data/coco --out out/coco_clicks
Needs: pip install 'tfprep[coco]'
"""

from tfprep import Recipe, augment, codecs, derive, sources

VOID = 255

RECIPE = Recipe(
    name="coco_clicks",
    source=sources.Coco(
        annotations="annotations/instances_{split}2017.json",
        images="{split}2017/{file_name}",
        fields=("instances",),
        unannotated="skip",
        void=VOID,
    ),
    geometry=[augment.Flip(p=0.5), augment.Resize(shorter=400), augment.Crop(384, 384)],
    color=[augment.Brightness(0.2), augment.Contrast(0.2)],
    derive={
        "object": derive.OneInstance(mask="instances", min_px=400),
        "clicks": derive.Clicks(mask="object", target=1, void=VOID, truncate_px=255),
    },
    variants={"train": 3},
    store={"image": codecs.Jpeg(95), "object": codecs.Zstd(), "clicks": codecs.Zstd()},
    seed=7,
)
