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
    """Start a container, and remove it at the end.

    The reaper of testcontainers is off: it needs a further image and container, and the block removes the container.
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
    """Ignore testcontainers' deprecation warnings about itself, since warnings are errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
