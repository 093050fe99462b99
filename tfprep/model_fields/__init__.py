"""Fields that models compute from the fields of a built or indexed dataset: `add_fields` and `remove_fields`.

They are in a dataset of their own, in a folder inside that of the main one. It has the same splits, shards and order of records,
so that a record of it belongs to the main record of the same place. The main shards stay as they are; the manifest names the
folder with its digest, and readers deliver both as one.
"""

from __future__ import annotations

from tfprep.model_fields.add import FieldsSummary, add_fields, remove_fields

__all__ = ["FieldsSummary", "add_fields", "remove_fields"]
