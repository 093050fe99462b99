"""Slices of computed tomography with 16 bits: Hounsfield units in a soft-tissue window, and a mask for each slice.

A window of 400 units around 40 is stored as uint16, so that nothing in it is lost; `Pixels()` without `to` would keep all units
as float32. All slices of one patient are in one split.
Data: see data/README.md: one DICOM file for each slice, and a mask of class numbers of the same name.
Run: tfprep build pipelines/ct_slices.py --data data/ct --out out/ct_slices
Needs: pip install 'tfprep[dicom]'
"""

from tfprep import Recipe, augment, codecs, derive, sources

RECIPE = Recipe(
    name="ct_slices",
    source=sources.Paired(
        image="slices/**/*.dcm",
        mask="masks/**/*.png",
        pixels={"image": sources.Pixels(to="uint16", low=-160, high=239)},
        splits=sources.Fractions(train=0.8, val=0.2, group_by="PatientID"),
    ),
    geometry=[augment.Flip(p=0.5), augment.Rotate(degrees=10), augment.Resize(256, 256)],
    fill={"mask": 255},
    derive={"distance": derive.SignedDistance(mask="mask", target=1, void=255, truncate_px=64)},
    variants={"train": 3},
    store={"image": codecs.Zstd(), "mask": codecs.Zstd(), "distance": codecs.Zstd(dtype="float16")},
    seed=7,
)
