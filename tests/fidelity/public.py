"""The names that must have a test of fidelity, and the one place where these tests use other names than the public ones."""

import numpy as np
from scipy import stats

from tfprep import Recipe, augment, codecs, derive, load, sources
from tfprep.builder.make_sample import SampleMaker

_NO_OPS = {
    "ColorOp", "GeometryOp", "Transform", "Derived", "Own",
    "Codec", "Feature", "Data", "LoaderOptions", "Mix", "Subset",
}  # fmt: skip
"""Public classes that are not ops."""
PUBLIC = {
    name: kind
    for package in (augment, derive, codecs, load)
    for name in package.__all__
    if isinstance(kind := getattr(package, name), type) and name not in _NO_OPS
}

FALSE_ALARM = 1e-6
"""The probability that correct code fails one check of a distribution. Seeds are fixed, so that it is drawn once and not in every
run; with about 100 checks, a change of the draws fails one by chance once in 10,000 times."""


def variants(sample, kinds, count=1, *, first=1, **options):
    """`count` variants of a sample, from variant `first` on, each as a dict of arrays: the way of a build, without files."""
    recipe = Recipe("r", sources.Folder(), **{"store": {name: codecs.Raw() for name in sample}, **options})
    return list(SampleMaker(recipe, kinds, {}).made("key", sample, range(first, first + count)))


def colored(op, image, count=1, **options):
    """The image under a color op, `count` times."""
    made = variants({"image": image}, {"image": "image"}, count, color=op if isinstance(op, list) else [op], **options)
    return [each["image"] for each in made]


def derived(op, count=1, **sample):
    """A derived input of these fields, `count` times."""
    kinds = {name: _kind(name) for name in sample}
    return [each["derived"] for each in variants(sample, kinds, count, derive={"derived": op})]


def _kind(name):
    return {"image": "image", "points": "points", "clicks": "scalar"}.get(name, "mask")


def check_uniform(values, low, high):
    """Kolmogorov and Smirnov's test."""
    assert low - 1e-9 <= np.min(values), np.min(values)
    assert np.max(values) <= high + 1e-9, np.max(values)
    p = stats.kstest(values, stats.uniform(low, high - low).cdf, method="asymp").pvalue
    assert p > FALSE_ALARM, f"not uniform from {low} to {high}: p = {p:.2g}"


def check_counts(counts, shares=None):
    """Pearson's test of counts against their expected shares, equal ones by default."""
    counts = np.asarray(counts, float)
    expected = counts.sum() * (np.full(len(counts), 1 / len(counts)) if shares is None else np.asarray(shares))
    assert expected.min() >= 5, "too few draws for this test"
    p = stats.chisquare(counts, expected).pvalue
    assert p > FALSE_ALARM, f"counts {counts} where {expected} were expected: p = {p:.2g}"


def check_share(happened, p):
    """The binomial test of a list of booleans."""
    happened = np.asarray(happened, bool)
    value = stats.binomtest(int(happened.sum()), len(happened), p).pvalue
    assert value > FALSE_ALARM, f"{happened.mean():.3f} of {len(happened)} where {p} was expected: p = {value:.2g}"


def area_shares(length, start, stop, count):
    """[count, length]: the share of each of `count` output pixels that each input pixel covers: an average of areas."""
    edges, pixels = np.linspace(start, stop, count + 1), np.arange(length)
    shares = np.clip(np.minimum(pixels + 1, edges[1:, None]) - np.maximum(pixels, edges[:-1, None]), 0, None)
    return shares / shares.sum(1, keepdims=True)


def window_of(changed):
    """Top, left, height and width of a rectangle of True."""
    ys, xs = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    assert changed.sum() == len(ys) * len(xs), "no rectangle"
    return int(ys[0]), int(xs[0]), len(ys), len(xs)
