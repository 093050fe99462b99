"""Multipart uploads that were begun and never ended: a bucket keeps, and bills, their parts, and no listing shows them.

obstore cannot list them, so that boto3 does, where it is installed. Google's and Azure's stores are not asked: Azure drops such
parts after a week, and Google's bucket has a rule for it (AbortIncompleteMultipartUpload), as Amazon's has.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfprep.errors import StorageError
from tfprep.storage.address import Url, without_secrets


@dataclass(frozen=True)
class Upload:
    """An upload that has not ended: the object's name below the URL, the upload's identifier, and when it began."""

    name: str
    identifier: str
    begun: str


def can_list_uploads(url: Url) -> bool:
    """Return whether uploads below this URL can be listed: it is on S3, and boto3 is installed."""
    return url.scheme == "s3" and importlib.util.find_spec("boto3") is not None


def list_uploads(url: Url) -> list[Upload]:
    """Return the uploads below a URL of S3 that have not ended.

    Raises:
        StorageError: The store cannot be reached or refuses.
    """
    prefix = f"{url.key}/" if url.key else ""
    try:
        pages = _client().get_paginator("list_multipart_uploads").paginate(Bucket=url.bucket, Prefix=prefix)
        return [
            Upload(one["Key"][len(prefix) :], one["UploadId"], str(one.get("Initiated", "")))
            for page in pages
            for one in page.get("Uploads", ())
        ]
    except Exception as error:
        raise _failed(url, "cannot be listed", error) from None


def abort_uploads(url: Url, uploads: Sequence[Upload]) -> None:
    """Remove the parts of uploads that `list_uploads` returned.

    Raises:
        StorageError: The store cannot be reached or refuses.
    """
    client = _client()
    try:
        for upload in uploads:
            key = (url / upload.name).key
            client.abort_multipart_upload(Bucket=url.bucket, Key=key, UploadId=upload.identifier)
    except Exception as error:
        raise _failed(url, "cannot be aborted", error) from None


def _client() -> Any:
    import boto3

    # boto3 takes everything from the environment, like obstore, but for AWS_REGION.
    return boto3.client("s3", region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))


def _failed(url: Url, what: str, error: Exception) -> StorageError:
    return StorageError(f"multipart uploads below {url} {what}: {without_secrets(str(error))}")
