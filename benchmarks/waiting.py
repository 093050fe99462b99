"""A codec that waits instead of decoding, for benchmarks/scale.py: what many cores would decode, on any machine.

Not a script: benchmarks/scale.py is. It is a module of its own so that worker processes can import it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tfprep import codecs
from tfprep.fields import Array, FieldSpec

WAIT_S = 250e-6
"""Seconds that a JPEG of 224 x 224 takes to decode."""


@dataclass(frozen=True)
class Waiting(codecs.Jpeg):
    """Reads JPEG bytes, and leaves the row as it is after `WAIT_S` seconds."""

    def decode_into(self, data: bytes | Array, spec: FieldSpec, target: Array) -> None:
        time.sleep(WAIT_S)
