"""Lease: who leads, until when, and in its annotations the numbers that outlive the bus (PROTOCOL 1, *term*)."""

from __future__ import annotations

from berth.api.meta import ObjectMeta, Trimmed


class LeaseSpec(Trimmed, frozen=True, kw_only=True):
    """The record of an election. Times are the holder's wall clock: for people, never to be reckoned with."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Trimmed, frozen=True, kw_only=True):
    """A Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
