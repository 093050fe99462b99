"""Builds a source as it is, and reads the fields and the rejected samples back."""

import json

import cv2
import numpy as np

import tfprep
from tfprep import Recipe, codecs
from tfprep.builder import BuildOptions

STORES = {
    "image": codecs.Raw(), "mask": codecs.Png(), "map": codecs.Raw(), "boxes": codecs.Scalar(),
    "points": codecs.Scalar(), "label": codecs.Scalar(), "scalar": codecs.Scalar(), "text": codecs.Text(),
}  # fmt: skip


def built(source, root, out, **options):
    """The fields of every sample (of all splits) by key, and the reason of every rejected sample by key."""
    store = options.pop("store", {name: STORES[kind] for name, kind in source.kinds().items()})
    recipe = Recipe(name="built", source=source, store=store, **options)
    tfprep.build(recipe, out, data=root, options=BuildOptions(workers=0))
    data = tfprep.open(out)
    fields = {}
    for split in data.splits:
        for batch in data.numpy_loader(split, batch_size=16, training=False, fields=[*store, "key"]):
            for row, key in enumerate(batch["key"]):
                fields[str(key)] = {"split": split, **{name: value[row] for name, value in batch.items()}}
    return fields, read_rejected(out)


def fields_of(source, root, out, **options):
    """The fields of every sample by key, of a source that rejects nothing."""
    fields, rejected = built(source, root, out, **options)
    assert not rejected
    return fields


def check_rejected(source, root, out, reasons):
    """Each sample of `reasons` is rejected with its reason, and accepted where that is empty; returns the accepted ones."""
    fields, rejected = built(source, root, out)
    for key, reason in reasons.items():
        assert reason in rejected[key] if reason else key in fields, key
    return fields


def read_rejected(out):
    path = out / "current/rejects.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {one["key"]: one["error"] for one in map(json.loads, lines)}


def picture(number, height=40, width=56):
    """A smooth color picture, RGB."""
    noise = np.random.default_rng(number).integers(0, 256, (height, width, 3)).astype(np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 3).astype(np.uint8)


def write_picture(path, number, height=40, width=56):
    pixels = picture(number, height, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), pixels[:, :, ::-1])
    return pixels


def png(array):
    """Of gray, RGB or RGBA."""
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(array.shape[2] if array.ndim == 3 else 1)
    return cv2.imencode(".png", array if order is None else array[:, :, order])[1].tobytes()


def folder(root, files):
    """Writes files below a new folder, and returns it: text or bytes by their path, or a picture of a number."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, int):
            write_picture(path, content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root
