"""Random recipes of detection and segmentation, compared with a geometry of their own.

Each recipe has one to four geometry ops, and is built from images with masks and from images with boxes. The expected matrices
come from the formulas here and the draws that a build makes. A recipe fails if a stored box has no area, is not the expected one
or has lost its label, or if a pixel of a mask has a class that the image does not have near its origin.
"""

import json
from math import ceil, cos, floor, radians, sin, tan

import numpy as np
from PIL import Image

import tfprep
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.seeding import generator

VOID, IMAGES, VARIANTS = 255, 4, 3
NEAR_PX = 1.0
"""How far tfprep may move a picture to whole pixels, or to a coarser raster."""


def draw_ops(rng):
    """One to four ops, of each type at most one, so that each draws from the first generator of its name."""
    ops = [
        augment.Flip(0.5, str(rng.choice(["horizontal", "vertical"]))),
        augment.Rotate(float(rng.uniform(1, 180))),
        augment.Rotate90(),
        augment.Scale((float(rng.uniform(0.5, 1)), float(rng.uniform(1, 2)))),
        augment.Shear(float(rng.uniform(1, 30))),
        augment.Translate(float(rng.uniform(0, 0.6)), float(rng.uniform(0, 0.6))),
        augment.Crop(*map(int, rng.integers(8, 60, 2))),
        augment.Resize(*map(int, rng.integers(12, 90, 2))),
    ]
    return [ops[number] for number in rng.permutation(len(ops))[: rng.integers(1, 5)]]


def expected_matrix(ops, size, key, variant, seed=0):
    """Return the 3 x 3 matrix from (x, y, 1) of the input to that of the output, and the output's (height, width)."""
    matrix = np.eye(3)
    for op in ops:
        name = type(op).__name__
        draws = generator(seed, key, variant, f"geometry/{name}/0") if variant else None
        one, size = _matrix(op, name, size, draws)
        matrix = one @ matrix
    return matrix, size


def _matrix(op, name, size, draws):
    height, width = size
    if name == "Resize":
        return np.diag([op.width / width, op.height / height, 1]), (op.height, op.width)
    if name == "Crop":
        shares = [None, None] if draws is None else draws.random(2)
        y, x = (
            _start(side, window, share) for side, window, share in zip(size, (op.height, op.width), shares, strict=True)
        )
        return np.array([[1.0, 0, -x], [0, 1, -y], [0, 0, 1]]), (op.height, op.width)
    if draws is None:
        return np.eye(3), size
    if name == "Rotate90":
        turns = int(draws.integers(4))
        matrix = np.eye(3)
        for _ in range(turns):  # (x, y) goes to (y, width - x)
            matrix, (height, width) = (
                np.array([[0.0, 1, 0], [-1, 0, width], [0, 0, 1]]) @ matrix,
                (width, height),
            )
        return matrix, (height, width)
    if name == "Translate":
        x, y = draws.uniform(-op.x, op.x) * width, draws.uniform(-op.y, op.y) * height
        return np.array([[1.0, 0, round(x)], [0, 1, round(y)], [0, 0, 1]]), size
    linear = np.eye(2)
    if name == "Flip" and draws.random() < op.p:
        linear = np.diag([-1.0, 1.0] if op.direction == "horizontal" else [1.0, -1.0])
    elif name == "Rotate":
        angle = radians(draws.uniform(-op.degrees, op.degrees))
        linear = np.array([[cos(angle), sin(angle)], [-sin(angle), cos(angle)]])
    elif name == "Scale":
        linear = np.eye(2) * draws.uniform(*op.factor)
    elif name == "Shear":
        linear = np.array([[1, tan(radians(draws.uniform(-op.x_degrees, op.x_degrees)))], [0, 1]])
    center = np.array([width / 2, height / 2])
    return np.block([[linear, (center - linear @ center)[:, None]], [np.zeros((1, 2)), np.ones((1, 1))]]), size


def _start(side, window, share):
    if side < window:
        return -((window - side) // 2)
    return round((side - window) / 2) if share is None else int(share * (side - window + 1))


def mask_faults(mask, stored, matrix):
    """Compare a stored mask with the raw one, pixel by pixel."""
    inverse, (height, width) = np.linalg.inv(matrix), mask.shape
    faults = []
    for row, column in np.ndindex(stored.shape):
        x, y, _ = inverse @ (column + 0.5, row + 0.5, 1)
        left, top, right, bottom = x - NEAR_PX, y - NEAR_PX, x + NEAR_PX, y + NEAR_PX
        near = mask[max(0, floor(top)) : max(0, ceil(bottom)), max(0, floor(left)) : max(0, ceil(right))]
        allowed = set(near.ravel().tolist())
        if left < 0 or top < 0 or right > width or bottom > height:
            allowed.add(VOID)
        if stored[row, column] not in allowed:
            faults.append(f"mask[{row}, {column}] is {stored[row, column]}, near its origin are {sorted(allowed)}")
    return faults


def box_faults(boxes, stored, labels, matrix, size, least):
    """Compare stored boxes and labels with the raw boxes, whose labels are their places."""
    faults = [f"box {box.tolist()} has no area" for box in stored if box[0] >= box[2] or box[1] >= box[3]]
    for label, (x0, y0, x1, y1) in enumerate(boxes):
        corners = (matrix @ np.array([[x0, y0, 1], [x1, y0, 1], [x1, y1, 1], [x0, y1, 1]]).T)[:2]
        low, high = corners.min(1), corners.max(1)
        inside = np.array([*np.maximum(low, 0), *np.minimum(high, size[::-1])])
        share = np.prod(np.maximum(inside[2:] - inside[:2], 0)) / np.prod(high - low)
        kept = stored[labels == label]
        sure = abs(share - least) > 0.15 if share else min(inside[2:] - inside[:2]) < -NEAR_PX
        if sure and len(kept) != (share > 0 and share >= least):
            faults.append(f"box {label}, seen to {share:.2f}, is there {len(kept)} times")
        elif len(kept) and not np.allclose(kept[0], inside, atol=NEAR_PX * max(1, abs(matrix[:2, :2]).max())):
            faults.append(f"box {label} is {kept[0].tolist()}, expected {inside.tolist()}")
    return faults


def check_recipe(seed, folder):
    """Build one random recipe below `folder`. Returns the recipe's geometry and what is wrong."""
    rng = np.random.default_rng(seed)
    ops, least = draw_ops(rng), float(rng.choice([0, 0, 0.4]))
    masks, boxes = _write(folder / "raw", rng)
    options = {"geometry": ops, "variants": {"train": VARIANTS}, "min_visible": least}
    paired = sources.Paired(image="{split}/*.png", mask="masks/*.png", void=VOID)
    store = {"boxes": codecs.Scalar(), "box_labels": codecs.Scalar()}
    recipes = {
        "masks": Recipe("masks", paired, {"mask": codecs.Raw()}, **options),
        "boxes": Recipe("boxes", sources.Coco("{split}.json"), store, **options),
    }
    faults = []
    for name, recipe in recipes.items():
        tfprep.build(recipe, folder / name, folder / "raw", options=BuildOptions(workers=0))
        data, read = tfprep.open(folder / name), set()
        fields = [*recipe.store, "key", "variant"]
        for batch in data.numpy_loader("train", 1, fields=fields, variants="all", training=False):
            key, variant = str(batch["key"][0]), int(batch["variant"][0])
            mask, own = masks[key], boxes[key]
            matrix, size = expected_matrix(ops, mask.shape, key, variant)
            if name == "masks":
                found = mask_faults(mask, batch["mask"][0], matrix)
            else:
                found = box_faults(own, batch["boxes"][0], batch["box_labels"][0], matrix, size, least)
            faults += [f"{key}, variant {variant}: {fault}" for fault in found]
            read.add((key, variant))
        if len(read) != IMAGES * VARIANTS:
            faults.append(f"{name}: {len(read)} records instead of {IMAGES * VARIANTS}")
    return f"{ops}, min_visible={least}", faults


def _write(root, rng):
    """Write images, masks of four classes and a COCO file; return masks and boxes by key."""
    masks, boxes, images, annotations = {}, {}, [], []
    for name in ("train", "masks"):
        (root / name).mkdir(parents=True)
    for number in range(IMAGES):
        height, width = map(int, rng.integers(16, 70, 2))
        key = f"train/{number}.png"
        mask = rng.integers(1, 5, (ceil(height / 7), ceil(width / 7))).repeat(7, 0).repeat(7, 1)[:height, :width]
        masks[key] = mask.astype(np.uint8)
        Image.fromarray(masks[key]).save(root / "masks" / f"{number}.png")
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(root / key)
        x0, y0 = rng.uniform(0, 0.8, (2, 6)) * [[width], [height]]
        x1, y1 = x0 + rng.uniform(0.02, 0.2, 6) * width, y0 + rng.uniform(0.02, 0.2, 6) * height
        boxes[key] = np.stack([x0, y0, x1, y1], axis=1)
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
        for label, (left, top, right, bottom) in enumerate(boxes[key].tolist()):
            box = [left, top, right - left, bottom - top]
            annotations.append({"id": 10 * number + label, "image_id": number, "category_id": label, "bbox": box})
    categories = [{"id": label, "name": f"class {label}"} for label in range(6)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "train.json").write_text(json.dumps(content))
    return masks, boxes
