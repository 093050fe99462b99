"""Near pairs in eight orientations against a comparison of each hash with each, and orientations against Pillow's."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from tests.photos import natural
from tfprep.images import perceptual_hash
from tfprep.inspect.fingerprints import MOST_DISTANCE, alike, linked, near_pairs, orientations, thumbnail


def turned(number, orientation):
    """A hash in an orientation by the definition: the sign of odd frequencies, and the transposed matrix."""
    bits = np.array([number >> (63 - n) & 1 for n in range(64)]).reshape(8, 8)
    bits = bits.T if orientation & 4 else bits
    odd = np.arange(8) % 2
    bits = bits ^ odd[:, None] * bool(orientation & 2) ^ odd * bool(orientation & 1)
    return int("".join(map(str, bits.ravel())), 2)


def by_brute_force(hashes, distance):
    numbers = hashes.tolist()
    near = {}
    for high in range(len(numbers)):
        versions = [turned(numbers[high], orientation) for orientation in range(8)]
        for low in range(high):
            bits = min((version ^ numbers[low]).bit_count() for version in versions)
            if bits <= distance:
                near[low, high] = bits
    return near


def found(hashes, distance):
    pairs = list(zip(*(column.tolist() for column in near_pairs(hashes, distance)), strict=True))
    assert len(pairs) == len(set(pairs)), "each pair comes once"
    return set(pairs)


def clustered(seed):
    """Random hashes, and around each others that differ in 0 to 14 bits, in some orientation."""
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, 30, dtype=np.uint64).tolist()
    for center in hashes[:30]:
        for _ in range(6):
            flips = sum(1 << bit for bit in rng.choice(64, int(rng.integers(0, 15)), replace=False).tolist())
            hashes.append(turned(center, int(rng.integers(8))) ^ flips)
    return np.unique(np.array(hashes, np.uint64))


def test_orientations_of_hashes_are_those_of_the_definition():
    hashes = clustered(0)
    assert orientations(hashes).tolist() == [[turned(one, n) for one in hashes.tolist()] for n in range(8)]


@pytest.mark.parametrize("distance", [0, 1, 4, 8, 10, MOST_DISTANCE])
def test_no_pair_is_too_far_and_nine_of_ten_are_found(distance):
    expected, pairs = by_brute_force(clustered(distance), distance), found(clustered(distance), distance)
    assert pairs <= expected.keys()
    assert len(pairs) >= 0.9 * len(expected) * bool(distance)
    assert {pair for pair, bits in expected.items() if bits <= distance / 2} <= pairs or not distance


def test_hashes_of_equal_bits_in_most_places_and_few_hashes():
    """Bytes agree in 56 bits, so that the choice of bits is worse than by chance."""
    for numbers, least in ((range(256), 0.8), ([], 0), ([7], 0), ([7, 8], 0)):
        hashes = np.array(numbers, np.uint64)
        expected, pairs = by_brute_force(hashes, 4), found(hashes, 4)
        assert pairs <= expected.keys()
        assert len(pairs) >= least * len(expected)


# --- thumbnails


def marked(picture):
    copy = picture.copy()
    ImageDraw.Draw(copy, "RGBA").text((10, 40), "SAMPLE", fill=(255, 255, 255, 130))
    return copy


@pytest.mark.parametrize(
    ("change", "orientation"),
    [
        (lambda picture: picture, 0),
        (lambda picture: picture.resize((70, 50)), 0),
        (lambda picture: picture.convert("L").convert("RGB"), 0),
        (lambda picture: picture.crop((3, 2, 125, 93)), 0),
        (marked, 0),
        (ImageOps.mirror, 1),
        (ImageOps.flip, 2),
        (lambda picture: picture.transpose(Image.Transpose.ROTATE_180), 3),
        (lambda picture: picture.transpose(Image.Transpose.TRANSPOSE), 4),
        # Turning the second to the right undoes a turn to the left.
        (lambda picture: picture.transpose(Image.Transpose.ROTATE_90), 5),
        (lambda picture: picture.transpose(Image.Transpose.ROTATE_270), 6),
        (lambda picture: picture.transpose(Image.Transpose.TRANSVERSE), 7),
    ],
)
def test_changed_pictures_are_alike_and_others_are_not(change, orientation):
    rng = np.random.default_rng(0)

    def detailed(number):
        grain = rng.normal(0, 25, (24, 32, 3)).repeat(4, 0).repeat(4, 1)
        return Image.fromarray(np.clip(natural(number) + grain, 0, 255).astype(np.uint8))

    picture, other = detailed(1), detailed(2)
    one, two = thumbnail(np.asarray(picture)), thumbnail(np.asarray(change(picture)))
    match = alike(one, two, [0] * 8)
    assert match is not None
    assert match[0] == orientation
    assert alike(thumbnail(np.asarray(other)), two, [0] * 8) is None
    assert alike(one, two, [65] * 8) is None


def test_one_edge_before_a_plain_sky_is_too_little_to_call_two_pictures_alike():
    pictures = [np.full((96, 96, 3), 200, np.uint8) for _ in range(2)]
    pictures[0][60:, :30] = 20
    pictures[1][62:, :28] = 90
    one, two = (thumbnail(picture) for picture in pictures)
    assert alike(one, two, [9, *[65] * 7]) is None
    assert alike(one, two, [65, 0, *[65] * 6]) is None
    assert alike(one, one, [0, *[65] * 7]) == (0, pytest.approx(1))


def test_a_mirrored_photo_is_near_in_the_orientation_that_is_derived_from_its_hash():
    for number in range(20):
        picture = natural(number)
        one, mirrored = perceptual_hash(picture), perceptual_hash(np.ascontiguousarray(picture[:, ::-1]))
        assert (turned(mirrored, 1) ^ one).bit_count() <= 10


def test_what_belongs_together_is_a_group():
    first, second = np.random.default_rng(0).integers(0, 300, (2, 200))
    expected = list(range(300))  # the smallest member, by the slow way
    for _ in range(300):
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            expected[a] = expected[b] = min(expected[a], expected[b])
    assert linked(300, first, second).tolist() == expected
    chain = np.random.default_rng(0).permutation(9999)
    assert not linked(10_000, chain, chain + 1).any()
    assert linked(3, chain[:0], chain[:0]).tolist() == [0, 1, 2]
