"""What NVRTC writes goes into memory of our own."""

from __future__ import annotations

from typing import Any

import pytest

from tilegen.runtime.nvrtc import _text


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_no_buffer_is_an_object_that_python_shares(count: int) -> None:
    """An empty log is one byte. A zero in the one b" " that CPython has would spoil what it prints."""
    given: list[bytes] = []

    def get(program: Any, buffer: bytes) -> int:
        given.append(buffer)
        return 0

    found = _text(lambda result: result, lambda program: count, get, None)
    (buffer,) = given
    assert len(found) == count <= len(buffer)
    assert all(buffer is not shared for shared in (b"", *(bytes([n]) for n in range(256))))
