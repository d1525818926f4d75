"""Which network devices carry a node's own traffic, each byte once. Pure.

Interfaces of pods, bridges, VLANs and tunnels repeat bytes of the node's own devices, and so do members of a bond.
Names that others give such interfaces are left out of the queries. Of the rest, usual names of network cards, bonds and
teams count; other names by the exporter's report on the device.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

# Flags of a device (node_network_flags, net/if.h).
LOOPBACK: Final = 0x8
POINTOPOINT: Final = 0x10  # a tunnel
NOARP: Final = 0x80  # a dummy, a tunnel or a VRF
MASTER: Final = 0x400  # a bond
SLAVE: Final = 0x800  # a device in a bond, which counts its traffic; also Azure's second device of a card
_OF_NO_CARD: Final = LOOPBACK | POINTOPOINT | NOARP
_NAMED_BY_USER: Final = 3  # node_network_name_assign_type of what a program made: bridge, VLAN, veth, vxlan, ...

# Whole names in the syntax of RE2 and Python.
OTHERS: Final = (
    "lo|dummy.*|ifb.*|nlmon.*|vrf.*|nodelocaldns.*|kube-.*",
    "veth.*|eni.*|cali.*|lxc.*|lxd.*|azv.*|gke.*|tap.*|k6t-.*|vif.*|vnet.*|macvlan.*|macvtap.*|ipvlan.*|ipvl.*",
    "br.*|docker.*|podman.*|nerdctl.*|cni.*|cbr.*|virbr.*|vmbr.*|fw(br|ln|pr).*|q(br|vb|vo|r-|g-).*",
    "cilium.*|flannel.*|vxlan.*|weave.*|datapath|antrea.*|ovs.*|ovn.*|genev.*",
    "vlan.*|tun.*|wg.*|wireguard.*|tailscale.*|zt.*|ppp.*|gre.*|erspan.*|sit.*|ipip.*|ip6.*|ip_vti.*|vti.*|xfrm.*",
    ".*pf[0-9]+[vs]f[0-9]+|pf[0-9]+hpf|e(n|th).*_[0-9]+",  # representors of a card's virtual and subfunctions
)
_OTHER: Final = re.compile("|".join(OTHERS))
# Names by the kernel, systemd or biosdevname.
_USUAL: Final = re.compile(r"eth\d+|en\w+|em\d+|p\d+p\d+\w*|ib\w+|wl\w+|ww\w+|(bond|team)[^.]*")
_VLAN: Final = re.compile(r"(?P<parent>.+)\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """A device as a node's exporters report it; ``None`` and the empty text are unknown."""

    flags: int | None = None
    address: str = ""  # the hardware's
    is_down: bool = False
    is_stacked: bool = False  # upon another device, or one end of a pair
    named_by: int | None = None  # name_assign_type
    members: int | None = None  # of a bond

    def __or__(self, other: DeviceFacts) -> DeviceFacts:
        return DeviceFacts(
            flags=self.flags if other.flags is None else other.flags,
            address=other.address or self.address,
            is_down=self.is_down or other.is_down,
            is_stacked=self.is_stacked or other.is_stacked,
            named_by=self.named_by if other.named_by is None else other.named_by,
            members=self.members if other.members is None else other.members,
        )


_NOTHING: Final = DeviceFacts()


def counted_devices(
    traffic: Mapping[str, float], facts: Mapping[str, DeviceFacts], *, only_own: bool
) -> Collection[str]:
    """The devices of one node whose traffic is added up, without repeated bytes.

    ``traffic``: bytes per second of both directions. ``only_own``: leave out all but the node's own devices.
    """
    chosen = _own(traffic, facts) if only_own else set(traffic)
    return _once(chosen, traffic, facts)


def _own(names: Collection[str], facts: Mapping[str, DeviceFacts]) -> set[str]:
    """The node's own devices; if no device is recognized as its own, all that may be."""
    possible = {name for name in names if not _OTHER.fullmatch(name)}
    running = {name for name in possible if not facts.get(name, _NOTHING).is_down}
    return {name for name in running if _is_own(name, facts.get(name, _NOTHING))} or running or possible


def _is_own(name: str, facts: DeviceFacts) -> bool:
    flags = facts.flags or 0
    if _USUAL.fullmatch(name) or facts.members is not None or (flags & MASTER and not flags & NOARP):
        return True
    if facts.named_by is None:
        return False
    return facts.named_by != _NAMED_BY_USER and not facts.is_stacked and not flags & _OF_NO_CARD


def _once(chosen: set[str], traffic: Mapping[str, float], facts: Mapping[str, DeviceFacts]) -> set[str]:
    """Without members of bonds, VLANs on a chosen device, and all but the busiest device with one hardware address."""
    left = {name for name in chosen if not (facts.get(name, _NOTHING).flags or 0) & SLAVE} or chosen
    left -= _unflagged_members(left, facts)
    left = {name for name in left if not ((vlan := _VLAN.fullmatch(name)) and vlan["parent"] in left)}
    busiest: dict[str, str] = {}
    for name in sorted(left, key=lambda name: (traffic[name], name)):
        address = facts.get(name, _NOTHING).address.lower()
        busiest[address if address.strip("0:") else name] = name  # a bridge, team or VLAN has the address of a card
    return set(busiest.values())


def _unflagged_members(names: set[str], facts: Mapping[str, DeviceFacts]) -> set[str]:
    """All other devices, if the bonds have as many members and no flag marks them."""
    bonds = {name: known for name in names if (known := facts.get(name, _NOTHING).members)}
    others = {name for name in names - bonds.keys() if facts.get(name, _NOTHING).flags is None}
    return others if len(others) == sum(bonds.values()) else set()
