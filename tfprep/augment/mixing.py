"""Options of mixing two samples with their labels, which a loader does: `loader(mix=[MixUp(0.2), CutMix()])`."""

from __future__ import annotations

from dataclasses import dataclass

from tfprep.checks import require_number, require_probability

_MOST_ALPHA = 1000


@dataclass(frozen=True)
class _OfTwo:
    """An op that mixes two samples, with the weights w and 1 - w, w from Beta(`alpha`, `alpha`)."""

    alpha: float = 1.0
    p: float = 1.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_number(f"{name}.alpha", self.alpha, 0, _MOST_ALPHA, above=True, example=0.2)
        require_probability(f"{name}.p", self.p)


@dataclass(frozen=True)
class MixUp(_OfTwo):
    """A weighted sum of two samples: w a + (1 - w) b, images, maps and one-hot labels alike (Zhang et al., 'mixup: Beyond
    Empirical Risk Minimization', ICLR 2018), with w from Beta(`alpha`, `alpha`), rounded to a 256th.

    Whole numbers are rounded half up, exactly; floats are computed in float32. `p` is the share of samples that are mixed.
    """

    alpha: float = 0.2


class CutMix(_OfTwo):
    """A box of the sample replaced by the partner's pixels there (Yun et al., 'CutMix', ICCV 2019): as high and wide as
    sqrt(1 - w) of the image, w from Beta(`alpha`, `alpha`), its center anywhere, cut off at the borders.

    Labels are mixed by the areas that are left. Masks and maps are replaced like the image. `p` is the share of samples that are
    mixed.
    """
