"""Exports of a dataset to other formats, one file each; samples are streamed, keys are kept."""

from tfprep.export.export import FORMATS, ExportSummary, export

__all__ = ["FORMATS", "ExportSummary", "export"]
