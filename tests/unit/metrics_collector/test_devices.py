"""Which devices carry a node's own traffic: by name, by what exporters report, and each byte once."""

import json
import random
from pathlib import Path

import pytest

from berth_metrics_collector.devices import MASTER, NOARP, POINTOPOINT, SLAVE, DeviceFacts, counted_devices
from berth_metrics_collector.prometheus import SampleRow
from berth_metrics_collector.samples import DeviceRows, Target, device_facts
from harness.worlds.collector_world import sample_row

CASE = json.loads((Path(__file__).parents[2] / "data" / "traffic-devices" / "spec.json").read_text())
UP = 0x1003
CARD = DeviceFacts(flags=UP, named_by=4)
MADE = DeviceFacts(flags=UP, named_by=3)


def own(*names: str, **facts: DeviceFacts) -> set[str]:
    """Of devices that are equally busy."""
    return set(counted_devices(dict.fromkeys([*names, *facts], 1.0), facts, only_own=True))


def all_of(traffic: dict[str, float], **facts: DeviceFacts) -> set[str]:
    return set(counted_devices(traffic, facts, only_own=False))


@pytest.mark.parametrize(("host", "expected"), [("vlan-1", 20e6), ("pods-1", 20e6), ("plain-1", 25e6)])
def test_the_exporters_of_a_real_cluster(host, expected):
    """VLANs on a bond, and interfaces of pods beside eth0, as reported by people."""
    [devices] = [one["devices"] for one in CASE.values() if one["nodename"] == host]
    facts = {name: DeviceFacts(flags=given[2] if len(given) > 2 else 4163) for name, given in devices.items()}
    counted = counted_devices({name: given[0] for name, given in devices.items()}, facts, only_own=True)
    assert sum(devices[name][0] for name in counted) == expected


POD_OR_VIRTUAL = """
    eni0123456789a eniba987654321 veth1a2b3c4d vethwe-bridge cali0123456789a lxc12345678 lxc_health tap0a1b2c3d-4e
    vxlan.calico vxlan100 flannel.1 cni0 docker0 docker_gwbridge br-0123456789ab br0 br-ex br-int kube-ipvs0
    kube-bridge kube-dummy-if wg0 wireguard.cali tun0 tunl0 nodelocaldns azv1234567890a gke1234567890a ovs-system
    ovn-k8s-mp0 genev_sys_6081 dummy0 ifb0 macvlan0 macvtap1 ipvlan1 cilium_host cilium_net cilium_vxlan antrea-gw0
    weave virbr0 vnet3 vmbr0 tailscale0 ip6tnl0 sit0 gre0 lo vlan.eth.1 vlan100 cbr0 podman0 qvo0a1b2c3d-4e
    enp3s0f0npf0vf1 en3f0pf0sf0 pf0hpf eth0_1 k6t-net1 fwpr101p0
""".split()  # noqa: SIM905 - as a list it is a page
CARDS = """
    eth0 eth1 eth10 ens5 ens192 enp1s0f0 enp1s0f0np0 enP4p1s0 eno1 eno2np1 enx001122334455 em1 p1p1 p4p2 bond0 bond1
    bond-data team0 ib0 ibp65s0 wlp2s0
""".split()  # noqa: SIM905 - as a list it is a page


@pytest.mark.parametrize("name", POD_OR_VIRTUAL)
def test_interfaces_of_pods_and_virtual_ones_do_not_count_by_their_names(name):
    assert own("eth0", name) == {"eth0"}


@pytest.mark.parametrize("name", CARDS)
def test_cards_bonds_and_teams_count_by_their_names(name):
    assert own(name, "lan-nobody-knows") == {name}


@pytest.mark.parametrize(
    ("facts", "counts"),
    [
        pytest.param(CARD, True, id="a card with another name"),
        pytest.param(DeviceFacts(flags=UP, named_by=1), True, id="named by the kernel"),
        pytest.param(DeviceFacts(flags=UP | MASTER, named_by=3), True, id="a bond with another name"),
        pytest.param(DeviceFacts(members=2), True, id="a bond, by the bonding series"),
        pytest.param(MADE, False, id="made by a program: a bridge, VLAN or veth"),
        pytest.param(DeviceFacts(flags=UP, named_by=4, is_stacked=True), False, id="renamed, but on another device"),
        pytest.param(DeviceFacts(flags=UP | NOARP, named_by=4), False, id="a dummy"),
        pytest.param(DeviceFacts(flags=UP | POINTOPOINT, named_by=1), False, id="a tunnel"),
        pytest.param(DeviceFacts(flags=MASTER | NOARP, named_by=3), False, id="a VRF"),
        pytest.param(DeviceFacts(flags=UP, named_by=4, is_down=True), False, id="a card that is not connected"),
        pytest.param(DeviceFacts(flags=UP), False, id="the exporter does not say"),
    ],
)
def test_about_other_names_the_exporter_decides(facts, counts):
    assert own("eth0", uplink=facts) == ({"eth0", "uplink"} if counts else {"eth0"})


def test_a_node_without_any_device_of_its_own_has_the_traffic_of_what_it_has():
    assert own("lan", "veth12") == {"lan"}
    assert own(lan=DeviceFacts(is_down=True)) == {"lan"}
    assert own(eth0=DeviceFacts(flags=UP, named_by=3, is_stacked=True)) == {"eth0"}  # a node in a container


def test_members_of_a_bond_are_left_out():
    member = DeviceFacts(flags=UP | SLAVE)
    assert own(bond0=DeviceFacts(flags=UP | MASTER), eth0=member, eth1=member) == {"bond0"}
    assert own(eth0=CARD, enP1p0s2=member) == {"eth0"}  # Azure's second device of one card
    assert own(eth0=member) == {"eth0"}
    assert own("eth0", "eth1", bond0=DeviceFacts(members=2)) == {"bond0"}  # no flags, and the number fits
    assert own("eth0", "eth1", "eth2", bond0=DeviceFacts(members=2)) == {"bond0", "eth0", "eth1", "eth2"}


def test_a_vlan_on_a_counted_device_is_left_out_also_of_named_devices():
    assert own("bond0", "bond0.100", "bond0.200") == {"bond0"}
    assert own("bond0.100") == {"bond0.100"}
    assert all_of({"bond0": 3.0, "bond0.100": 2.0, "bond0.100.7": 1.0}) == {"bond0"}
    assert all_of({"eth0.100": 2.0, "vlan7": 1.0}) == {"eth0.100", "vlan7"}


def test_of_devices_with_one_hardware_address_the_busiest_counts():
    """A team has no flag, a bridge and a VLAN may have any name: they have the address of a card."""
    card, other = DeviceFacts(address="0c:42:a1:00:00:01"), DeviceFacts(address="0C:42:A1:00:00:01")
    assert all_of({"eth0": 9.0, "lan": 7.0}, eth0=card, lan=other) == {"eth0"}
    assert all_of({"p1": 4.0, "p2": 5.0, "team0": 9.0}, p1=card, p2=card, team0=other) == {"team0"}
    none = DeviceFacts(address="00:00:00:00:00:00")
    assert all_of({"a": 1.0, "b": 1.0}, a=none, b=none) == {"a", "b"}


@pytest.mark.parametrize("seed", range(200))
def test_no_byte_of_a_generated_node_counts_twice(seed):
    """Cards alone, in bonds or under a bridge, with VLANs and pods: what counts is what the cards carry."""
    rng = random.Random(seed)
    traffic: dict[str, float] = {}
    facts: dict[str, DeviceFacts] = {}
    truth, has_netclass = 0.0, rng.random() < 0.7

    def add(name: str, rate: float, **known: object) -> None:
        traffic[name] = rate
        if has_netclass:
            facts[name] = DeviceFacts(**{"flags": UP, "named_by": 4, **known})

    for number in range(rng.randint(1, 4)):
        address, rates = f"0c:42:a1:00:00:{number:02x}", [rng.uniform(1e3, 1e9) for _ in range(rng.choice([1, 1, 2]))]
        top = name = rng.choice([f"ens{number}", f"eth{number}"])
        truth += sum(rates)
        if len(rates) == 1 or not has_netclass:
            add(name, sum(rates), address=address)
        else:
            top = rng.choice([f"bond{number}", f"storage{number}"])
            add(top, sum(rates), address=address, flags=UP | MASTER, named_by=3)
            for member, rate in enumerate(rates):
                add(f"{name}f{member}" if name[:3] == "ens" else f"eth{number}{member}", rate, flags=UP | SLAVE)
        for vlan in rng.sample(range(2, 99), rng.randint(0, 2)):
            add(f"{top}.{vlan}", sum(rates) / 3, address=address, named_by=3, is_stacked=True)
        if rng.random() < 0.3:
            add(f"br-ex{number}", sum(rates) / 2, address=address, named_by=3)
            if has_netclass:
                add(f"lan{number}", sum(rates) / 2, address=address, named_by=3)
    for pod in range(rng.randint(0, 9)):
        name = rng.choice(["eni{:011x}", "veth{:08x}", "cali{:011x}", "lxc{:08x}", "tap{:08x}"])
        add(name.format(rng.getrandbits(32) + pod), rng.uniform(1, 1e8), named_by=3, is_stacked=True)
    counted = counted_devices(traffic, facts, only_own=True)
    assert sum(traffic[name] for name in counted) == pytest.approx(truth)


def test_facts_are_read_by_exporter_and_device():
    labels = {"instance": "x:9100", "job": "j", "cluster": "a"}

    def rows(value: str, **more: str) -> list[SampleRow]:
        return [sample_row(value, __name__="m", **labels, **more)]

    made = DeviceRows(
        flags=rows("5187", device="bond0"),
        info=rows("1", device="bond0", address="0c:42:a1:00:00:01", operstate="down", duplex="full", ifalias=""),
        stacked=rows("2", device="bond0.7") + rows("0", device="tunl0"),
        named_by=rows("3", device="bond0") + rows("NaN", device="bond0.7"),
        bonds=rows("2", master="bond0"),
    )
    [(target, found)] = device_facts(made, "node").items()
    assert target == Target(instance="x:9100", job="j", others=frozenset({("cluster", "a")}))
    bond = DeviceFacts(flags=5187, address="0c:42:a1:00:00:01", is_down=True, named_by=3, members=2)
    assert found == {"bond0": bond, "bond0.7": DeviceFacts(is_stacked=True), "tunl0": DeviceFacts()}
