"""Shares and bytes as they are typed."""

from __future__ import annotations

import click
import pytest

from tfprep.cli.values import byte_count, share


@pytest.mark.parametrize(("typed", "number"), [("1%", 0.01), ("0.01", 0.01), ("100%", 1), ("0", 0), ("1", 1)])
def test_share(typed, number):
    assert share(typed) == pytest.approx(number)


@pytest.mark.parametrize(
    ("typed", "number"),
    [("200GB", 200e9), ("1.5TB", 1.5e12), ("7 mb", 7e6), ("12", 12), ("12B", 12), ("3 kbytes", 3000), ("5bytes", 5)],
)
def test_bytes(typed, number):
    assert byte_count(typed) == pytest.approx(number)


@pytest.mark.parametrize("typed", ["", "lots", "nan", "101%", "2", "-1%", "1%%", "inf"])
def test_what_is_no_share(typed):
    with pytest.raises(click.BadParameter, match="expected a share"):
        share(typed)


@pytest.mark.parametrize("typed", ["", "GB", "much", "1XB", "nan", "inf", "-1GB", "0", "1GBB"])
def test_what_is_no_size(typed):
    with pytest.raises(click.BadParameter, match="expected bytes such as 200GB"):
        byte_count(typed)
