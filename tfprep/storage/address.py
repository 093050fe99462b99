"""The address of an object, or of a folder of objects, such as `s3://bucket/datasets/camvid`. It carries no credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfprep.errors import DatasetError

SCHEMES = ("s3", "gs", "az", "http", "https", "memory")
_SECRET_VARIABLE = re.compile(
    r"(SECRET|TOKEN|PASSWORD|CREDENTIAL|(ACCOUNT|ACCESS|MASTER|API|CUSTOMER|PRIVATE)_KEY|CONNECTION_STRING|SAS)"
)
_USER_INFO = re.compile(r"(?<=://)(?!\$)[^\s/@]*@")
"""A user and a password in a URL, which end with the last '@' before the first '/'."""
_PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^@:?#\[\]]*)(:[0-9]{1,5})?")
"""A bucket or a host, with a port or without."""
_SHORTEST_SECRET = 8
"""Values of fewer characters are not replaced: they could be parts of ordinary words."""


@dataclass(frozen=True, order=True)
class Url:
    """An object's address. It has those methods of `Path` that datasets use, and no others.

    Attributes:
        scheme: One of `SCHEMES`.
        bucket: The bucket or container; for HTTP the host and port.
        key: The object's key, or a folder's without the slash at its end.
    """

    scheme: str
    bucket: str
    key: str

    def __truediv__(self, name: str) -> Url:
        return Url(self.scheme, self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        return Url(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def absolute(self) -> Url:
        return self

    def with_name(self, name: str) -> Url:
        return self.parent / name

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")


@dataclass(frozen=True)
class ObjectInfo:
    """An object's name in its store, its size, and a version that changes whenever the object is written.

    `modified` is when it was written, for stores that give objects no version; "" of local files.
    """

    name: str
    bytes: int
    version: str
    modified: str = ""


def parse_url(text: str) -> Url:
    """Return the address that a URL names.

    Raises:
        DatasetError: The scheme is unknown, there is no bucket, or the URL carries credentials or a query.
    """
    scheme, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    is_web, place = scheme in ("http", "https"), _PLACE.fullmatch(bucket)
    is_plain = place is not None and (is_web or not place[2])
    if not is_plain or "?" in rest or (is_web and "#" in rest):
        # Nothing of a URL with a user is shown: its password may hold any of / ? # @.
        shown = f"{scheme}://{re.split('[?#]', rest)[0]}" if is_plain else f"{scheme}://..."
        raise DatasetError(
            f"the URL of {shown} carries a user, a password or a query; give the plain URL. Credentials are read from the "
            "store's environment variables, such as AWS_ACCESS_KEY_ID"
        )
    if scheme not in SCHEMES:
        raise DatasetError(
            f"{text} cannot be read: there are {', '.join(f'{name}://' for name in SCHEMES)}, not {scheme}://"
        )
    if not bucket:
        raise DatasetError(f"{text} names no {'host' if is_web else 'bucket'}")
    return Url(scheme, bucket, "/".join(part for part in key.split("/") if part))


def without_secrets(text: str, others: Mapping[str, str] | None = None) -> str:
    """Return a message without secrets, for whatever is shown or stored.

    Values of environment variables that hold secrets, and of `others`, are replaced by their names; so are a user and a password
    in the URL that a variable holds, such as `AWS_ENDPOINT_URL` or `HTTPS_PROXY`. Any other URL loses them too.
    """
    secrets = dict(others or {})
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name.upper()):
            secrets[name] = value
        elif "@" in value and ("://" in value or "PROXY" in name.upper()):
            user = value.partition("://")[2] or value
            secrets[f"{{{name}: user}}"] = user.rpartition("@")[0]
    # The longest first: a value may begin with another one.
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"${name}")
    return _USER_INFO.sub("$user@", text)
