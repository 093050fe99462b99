"""Exports of a dataset to other formats, one file each; samples are streamed, keys are kept."""

from tfprep.export.export import ExportSummary, export

__all__ = ["ExportSummary", "export"]
