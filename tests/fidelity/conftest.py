"""Counts what a test of fidelity ran: a test that names an op must have called it, or it fails."""

from collections import Counter

import pytest

from tests.fidelity.public import PUBLIC

_CALLS = ("__call__", "window", "curve", "encode", "decode", "decode_into", "tf_decode")


@pytest.fixture(autouse=True)
def _calls_are_counted(request, monkeypatch):
    """Fails a test marked `covers("Flip", ...)` that called none of the methods of one of these classes."""
    names = [name for marker in request.node.iter_markers("covers") for name in marker.args]
    calls = Counter()

    def counted(name, method):
        def call(self, *args, **options):
            calls[name] += 1
            return method(self, *args, **options)

        return call

    for name in names:
        for method in _CALLS:
            if method in dir(PUBLIC[name]):
                monkeypatch.setattr(PUBLIC[name], method, counted(name, getattr(PUBLIC[name], method)))
    yield
    idle = [name for name in names if not calls[name] and set(_CALLS) & set(dir(PUBLIC[name]))]
    assert not idle, f"the test names {idle} and never called them"
