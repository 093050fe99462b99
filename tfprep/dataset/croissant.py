"""`croissant.json`: the dataset in the vocabulary of Croissant 1.0 (MLCommons), which search engines of datasets read.

It names every file with its SHA-256, the classes of labels, and the index as a record set, whose records `mlcroissant` reads. The
shards are files of the distribution; Croissant has no way to say how a TFRecord is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfprep.dataset.manifest import FileDigest, Manifest
from tfprep.plain_json import indented

CROISSANT = "croissant.json"
_VOCABULARY = "http://mlcommons.org/croissant/"
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": _VOCABULARY,
    "rai": f"{_VOCABULARY}RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that the specification prescribes word for word."""
_COLUMNS = {
    "key": "sc:Text",
    "split": "sc:Text",
    "variant": "sc:Integer",
    "shard": "sc:Integer",
    "offset": "sc:Integer",
}


def croissant_text(manifest: Manifest, index: FileDigest) -> str:
    """Return the content of `croissant.json`.

    Args:
        manifest: What the dataset is.
        index: The digest of its index.
    """
    samples = sum(split.samples for split in manifest.splits.values())
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": f"{_VOCABULARY}1.0",
        "name": manifest.name,
        "description": f"{samples} samples in {', '.join(manifest.splits)}; fields: {', '.join(manifest.fields)}.",
        "distribution": list(_files(manifest, index)),
        "recordSet": [_records(manifest), *_class_names(manifest)],
    }
    return indented(document) + "\n"


def _files(manifest: Manifest, index: FileDigest) -> Iterator[dict[str, Any]]:
    yield _file(manifest.index, "application/x-parquet", index.bytes, index.sha256)
    for file in manifest.shard_files():
        yield _file(file.name, "application/octet-stream", file.bytes, file.sha256)


def _file(name: str, encoding: str, size: int, sha256: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject", "@id": name, "name": name, "contentUrl": name, "contentSize": f"{size} B",
        "encodingFormat": encoding, "sha256": sha256,
    }  # fmt: skip


def _records(manifest: Manifest) -> dict[str, Any]:
    labels = [info.spec.shape for info in manifest.fields.values() if info.spec.kind == "label"]
    columns = {**_COLUMNS, "size": "sc:Integer", **({"label": "sc:Integer"} if labels and labels[0] == () else {})}
    return {
        "@type": "cr:RecordSet",
        "@id": "records",
        "name": "records",
        "description": "One row of the index for each record: where it is, and its label.",
        "field": [_column("records", manifest.index, name, kind) for name, kind in columns.items()],
    }


def _column(records: str, file: str, name: str, kind: str) -> dict[str, Any]:
    source = {"fileObject": {"@id": file}, "extract": {"column": name}}
    return {"@type": "cr:Field", "@id": f"{records}/{name}", "name": name, "dataType": kind, "source": source}


def _class_names(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield a record set with the numbers and names of the classes of each field."""
    for field, names in manifest.classes.items():
        records = f"{field}_classes"
        fields = [
            {"@type": "cr:Field", "@id": f"{records}/{name}", "name": name, "dataType": kind}
            for name, kind in (("number", "sc:Integer"), ("name", "sc:Text"))
        ]
        rows = [{f"{records}/number": number, f"{records}/name": name} for number, name in enumerate(names)]
        yield {
            "@type": "cr:RecordSet", "@id": records, "name": records, "dataType": "sc:Enumeration",
            "key": {"@id": f"{records}/number"}, "field": fields, "data": rows,
        }  # fmt: skip
