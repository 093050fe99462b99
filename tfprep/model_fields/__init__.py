"""Fields that models compute from the fields of a built or indexed dataset: `add_fields` and `remove_fields`.

They lie in a dataset of their own, in a folder inside that of the main one. It has the same splits, shards and order of records,
so that a record of it belongs to the main record of the same place. The main shards stay as they are; `tfprep.json` names the
folder with its digest, and readers deliver both as one.

Names are imported when they are first used: a build without such fields needs no loader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.lazy import lazy_names

if TYPE_CHECKING:
    from tfprep.model_fields.add import FieldsSummary, add_fields, explain_fields, remove_fields
    from tfprep.model_fields.both_stages import build

__all__ = ["FieldsSummary", "add_fields", "build", "explain_fields", "remove_fields"]

__getattr__, __dir__ = lazy_names(
    __name__, {"add": ["FieldsSummary", "add_fields", "explain_fields", "remove_fields"], "both_stages": ["build"]}
)
