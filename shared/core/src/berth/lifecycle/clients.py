"""The client of NATS, created from a service's settings."""

from __future__ import annotations

from berth.bus.connection import Traffic
from berth.bus.session import NatsBus
from berth.bus.settings import MEBIBYTE, BusSettings, NatsCredentials, TlsSettings, TopologySettings
from berth.settings.settings import V_MESSAGE, NatsSettings, Settings


def nats_bus(settings: Settings) -> NatsBus:
    nats, numbers = settings.nats, settings.numbers
    topology = TopologySettings(
        prefix=nats.prefix,
        replicas=nats.replicas,
        storage=nats.storage,
        scorer_ack_wait=numbers.scorer_ack_wait,
        binder_ack_wait=numbers.binder_ack_wait,
        duplicate_window=numbers.duplicate_window,
        ranked_bytes=nats.ranked_mebibytes * MEBIBYTE,
        cluster_bytes=nats.cluster_mebibytes * MEBIBYTE,
        decisions_bytes=nats.decisions_mebibytes * MEBIBYTE,
        decisions_age=nats.decisions_age,
    )
    servers = tuple(address.strip() for address in nats.url.split(","))
    return NatsBus(
        BusSettings(
            servers=servers,
            credentials=_credentials(nats),
            inbox_prefix=nats.inbox_prefix,
            domain=nats.domain,
            tls=_tls(nats),
            topology=topology,
        ),
        traffic=_log_message() if settings.log.verbosity >= V_MESSAGE else None,
    )


def _log_message() -> Traffic:
    # It imports structlog, 0.1 s of CPU, which commands do without.
    from berth.observability.logging import log_message  # noqa: PLC0415 - see above

    return log_message


def _credentials(nats: NatsSettings) -> NatsCredentials:
    return NatsCredentials(
        user=nats.user,
        password=nats.password.reveal() if nats.password else None,
        token=nats.token.reveal() if nats.token else None,
        credentials_file=nats.credentials_file,
        nkey_seed_file=nats.nkey_seed_file,
    )


def _tls(nats: NatsSettings) -> TlsSettings | None:
    if nats.ca_file is None and nats.cert_file is None:
        return None
    return TlsSettings(authority_file=nats.ca_file, certificate_file=nats.cert_file, key_file=nats.key_file)
