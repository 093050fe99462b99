"""Exports of a dataset to other formats; samples are streamed, keys are kept."""

from tfprep.export.export import ExportSummary, export

__all__ = ["ExportSummary", "export"]
