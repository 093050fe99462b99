"""Message classes for the protocol-buffer format of the profiler's files, for which TensorFlow has no public class.

The field numbers are part of the formats. Unknown fields are skipped, so only those in use are listed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

_TYPES = descriptor_pb2.FieldDescriptorProto

_FORMATS = {
    # https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto
    "xspace": {
        "XSpace": "1 planes *XPlane",
        "XPlane": "2 name string, 3 lines *XLine, 4 event_metadata *EventEntry, 5 stat_metadata *StatEntry, 6 stats *XStat",
        # A map on the wire is a repeated message of key and value.
        "EventEntry": "1 key int64, 2 value XEventMetadata",
        "StatEntry": "1 key int64, 2 value XStatMetadata",
        "XLine": "1 id int64, 2 name string, 3 timestamp_ns int64, 4 events *XEvent, 11 display_name string",
        "XEvent": "1 metadata_id int64, 2 offset_ps int64, 3 duration_ps int64",
        "XStat": "1 metadata_id int64, 3 uint64_value uint64",
        "XEventMetadata": "2 name string",
        "XStatMetadata": "2 name string",
    },
}


@cache
def message_class(format_name: str, message: str) -> Any:
    """The class of a message.

    Args:
        format_name: `"xspace"` (the profiler's file).
        message: Name of the message in that format, such as `"XSpace"`.

    Returns:
        A class of `google.protobuf`.
    """
    return message_factory.GetMessageClass(_pool(format_name).FindMessageTypeByName(f"{format_name}.{message}"))


@cache
def _pool(format_name: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{format_name}.proto", package=format_name, syntax="proto3")
    for name, fields in _FORMATS[format_name].items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            number, field_name, kind = field.split(" ")
            _add_field(message, int(number), field_name, kind, format_name)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_field(message: Any, number: int, name: str, kind: str, package: str) -> None:
    field = message.field.add(name=name, number=number)
    field.label = _TYPES.LABEL_REPEATED if kind.startswith("*") else _TYPES.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    scalar = getattr(_TYPES, f"TYPE_{kind.upper()}", None)
    field.type = _TYPES.TYPE_MESSAGE if scalar is None else scalar
    if scalar is None:
        field.type_name = f".{package}.{kind}"
