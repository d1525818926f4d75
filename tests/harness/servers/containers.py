"""Containers of testcontainers, started and removed with a block."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

Container = TypeVar("Container", bound=DockerContainer)


@contextmanager
def started(container: Container) -> Iterator[Container]:
    """Start one of testcontainers' and remove it at the end.

    Without its reaper, which is one more image and one more container for what the block does.
    """
    testcontainers_config.ryuk_disabled = True
    with deprecations_of_testcontainers():
        container.start()
    try:
        yield container
    finally:
        container.stop()


@contextmanager
def deprecations_of_testcontainers() -> Iterator[None]:
    """The library's own modules use what it has deprecated; a warning here is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
