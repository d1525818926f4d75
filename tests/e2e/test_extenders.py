"""HTTP extenders: berth asks them what kube-scheduler asks them, in the same bytes, and comes to the same result."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.contenders import kube_scheduler
from harness.servers.child_processes import spawn, stop
from harness.servers.control_plane import ControlPlane
from harness.servers.extender import Raw, RecordingExtender, Say, recording_extender
from harness.worlds.cluster_user import ClusterUser, cluster_user, condition_of, eventually, node_of
from harness.worlds.pipeline import berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(180)]

CALLERS = ("kube", "berth")
NODES = 4
WITHOUT = [{"name": "DynamicResources"}]
"""Its PostFilter, which berth has not, adds to kube-scheduler's messages that there are no claims to deallocate."""


def gpu(name: str) -> str:
    return f"example.com/{name}"


def one(url: str, name: str, **fields: object) -> dict:
    """An extender whose pods ask for a resource of its name, which only it knows."""
    return {
        "urlPrefix": f"{url}/{name}",
        "managedResources": [{"name": gpu(name), "ignoredByScheduler": True}],
        "filterVerb": "filter",
        **fields,
    }


def extenders(url: str) -> list[dict]:
    both = {"prioritizeVerb": "prioritize", "weight": 100}
    return [
        one(url, "ignorable", ignorable=True),
        one(url, "names", nodeCacheCapable=True, **both),
        one(url, "nodes", **both),
        one(url, "strict"),
        one(url, "fussy", nodeCacheCapable=True),
        one(url, "error", nodeCacheCapable=True),
        one(url, "silent", nodeCacheCapable=True),
        one(url, "stranger", nodeCacheCapable=True),
        one(url, "unranked", nodeCacheCapable=True, **both),
        one(url, "binder", nodeCacheCapable=True, bindVerb="bind"),
        one(url, "picky", nodeCacheCapable=True, preemptVerb="preempt"),
        one(url, "lenient", nodeCacheCapable=True, preemptVerb="preempt", ignorable=True),
        {**one(url, "limited"), "managedResources": [{"name": gpu("limited")}]},
        {"urlPrefix": f"{url}/everything/", "filterVerb": "filter", "nodeCacheCapable": True},
    ]


def configuration(caller: str, url: str, **other: object) -> dict:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": caller, "plugins": {"multiPoint": {"disabled": WITHOUT}}}],
        "extenders": extenders(f"{url}/{caller}"),
        **other,
    }


def last(name: str) -> str:
    """Nodes are called after the test's namespace, and a number."""
    return name.rpartition("-")[2]


def names_of(args: dict) -> list[str]:
    return args["NodeNames"] or [node["metadata"]["name"] for node in args["Nodes"]["items"]]


def scores(args: dict) -> list[dict]:
    """The node 2 is the best."""
    return [{"Host": name, "Score": 10 if last(name) == "2" else 3} for name in names_of(args)]


ANSWERS = {
    "everything/filter": lambda args: {"NodeNames": args["NodeNames"]},
    "names/filter": lambda args: {
        "nodenames": [name for name in args["NodeNames"] if last(name) != "0"],
        "failedNodes": {name: "not the first" for name in args["NodeNames"] if last(name) == "0"},
    },
    "names/prioritize": scores,
    "nodes/filter": lambda args: {
        "Nodes": {"items": [node for node in args["Nodes"]["items"] if last(node["metadata"]["name"]) != "1"]},
        "NodeNames": None,
    },
    "nodes/prioritize": scores,
    "ignorable/filter": lambda _: Raw(500),
    "strict/filter": lambda _: Raw(503, b"out of order"),
    "fussy/filter": lambda args: {
        "NodeNames": [],
        "FailedNodes": {name: "too small" for name in args["NodeNames"] if last(name) in "01"},
        "FailedAndUnresolvableNodes": {name: "too far" for name in args["NodeNames"] if last(name) in "12"},
    },
    "error/filter": lambda _: {"Error": "no licence"},
    "silent/filter": lambda _: {},
    "stranger/filter": lambda _: {"NodeNames": ["elsewhere"]},
    "unranked/filter": lambda args: {"NodeNames": [name for name in args["NodeNames"] if last(name) in "03"]},
    "unranked/prioritize": lambda _: {"this is": "no list"},
    "binder/filter": lambda args: {"NodeNames": [name for name in args["NodeNames"] if last(name) == "3"]},
    "limited/filter": lambda args: {"Nodes": args["Nodes"]},
    "picky/filter": lambda args: {"NodeNames": args["NodeNames"]},
    "lenient/filter": lambda args: {"NodeNames": args["NodeNames"]},
}


@pytest.fixture(scope="module")
def extender() -> Iterator[RecordingExtender]:
    with recording_extender() as made:
        made.answers.update(ANSWERS)
        yield made


@contextmanager
def running_kube_scheduler(plane: ControlPlane, extender: RecordingExtender, folder: Path) -> Iterator[None]:
    found = kube_scheduler()
    if found is None:
        pytest.skip("there is no kube-scheduler beside the API server")
    config = folder / "kube-scheduler.json"
    config.write_text(
        json.dumps(configuration("kube", extender.url, clientConnection={"kubeconfig": str(plane.kubeconfig_path)}))
    )
    process = spawn([str(found.program), f"--config={config}", "--secure-port=0"], folder / "kube-scheduler.log")
    try:
        yield
    finally:
        stop([process])


@pytest.fixture(scope="module")
def both(own_control_plane: ControlPlane, extender: RecordingExtender, tmp_path_factory) -> Iterator[None]:
    """kube-scheduler and berth side by side, each for the pods that name it."""
    folder = tmp_path_factory.mktemp("extenders")
    config = folder / "berth.json"
    config.write_text(json.dumps(configuration("berth", extender.url)))
    with running_kube_scheduler(own_control_plane, extender, folder):
        plane = ("--kubeconfig", own_control_plane.kubeconfig_path)
        with berth_up(*plane, "--config", config, folder=folder) as berth:
            berth.wait_until_ready()
            yield


@pytest.fixture
async def cluster(
    own_control_plane: ControlPlane, both: None, extender: RecordingExtender
) -> AsyncIterator[ClusterUser]:
    """With nodes that both know: the first to have a pod might know fewer of them than the other."""
    async with cluster_user(own_control_plane.kubeconfig_path) as seen:
        await seen.add_nodes(NODES, cpu="4", labels={"zone": "here"})
        for caller in CALLERS:
            await eventually(
                lambda caller=caller: _knows_the_nodes(seen, extender, caller), f"{caller} to know the nodes"
            )
        yield seen


async def _knows_the_nodes(seen: ClusterUser, extender: RecordingExtender, caller: str) -> bool:
    """By what it asks about a pod, which is gone then."""
    extender.requests.clear()
    await seen.create([seen.pod("first", spec={"schedulerName": caller})])
    await outcome(seen, "first")
    await seen.delete_pod("first")
    return any(len(request.body.get("NodeNames") or ()) == NODES for request in extender.of(caller))


async def outcome(seen: ClusterUser, name: str) -> tuple[str, str, str]:
    """The node, or the condition's reason and message, once there is one or the other."""

    async def found() -> tuple[str, str, str] | None:
        pod = (await seen.pods()).get(name, {})
        condition = await seen.condition(name) if pod else {}
        if node := node_of(pod) if pod else "":
            return last(node), "", ""
        return ("", condition["reason"], condition["message"]) if condition.get("reason") else None

    return await eventually(found, f"an outcome for {name}")


def in_order(body: dict) -> dict:
    """The body without what differs between two equal pods, and with nodes by name."""
    if "PodUID" in body:
        assert body["PodUID"]
        return {**body, "PodUID": ""}
    pod = json.loads(json.dumps(body["Pod"]))
    for name in ("uid", "resourceVersion", "creationTimestamp"):
        assert pod["metadata"].pop(name)
    assert pod["spec"].pop("schedulerName") in CALLERS
    nodes, names = body["Nodes"], body["NodeNames"]
    if nodes is not None:
        nodes = {**nodes, "items": sorted(nodes["items"], key=lambda node: node["metadata"]["name"])}
    return {**body, "Pod": pod, "Nodes": nodes, "NodeNames": names and sorted(names)}


async def compared(
    seen: ClusterUser,
    extender: RecordingExtender,
    resource: str = "",
    *,
    initially: bool = False,
    by_chance: bool = False,
) -> tuple[list[str], tuple[str, str, str]]:
    """Have both schedule the same pod; return what was called, in order, and the result, equal for both."""
    called, sent, results = {}, {}, {}
    for caller in CALLERS:
        spec: dict = {"schedulerName": caller}
        if resource:
            wanted = {"requests": {gpu(resource): "1"}, "limits": {gpu(resource): "1"}}
            container = {"name": "first", "image": "i", "resources": wanted}
            spec["initContainers" if initially else "containers"] = [container]
        extender.requests.clear()
        env = [{"name": "PASSWORD", "value": "hunter2"}]
        made = seen.pod("web", spec=spec, labels={"app": "web"})
        made["metadata"]["annotations"] = {"extender.example/hint": "all"}
        made["spec"]["containers"][0]["env"] = env
        await seen.create([made])
        results[caller] = tuple(text.replace(f"{extender.url}/{caller}", "URL") for text in await outcome(seen, "web"))
        requests = {request.path: in_order(request.body) for request in reversed(extender.of(caller))}
        called[caller] = list(dict.fromkeys(request.path for request in extender.of(caller)))
        sent[caller] = requests
        await seen.delete_pod("web")
        await eventually(lambda: _is_gone(seen), "the pod to be gone")
    assert called["kube"] == called["berth"]
    assert sent["kube"] == sent["berth"]
    assert results["kube"] == results["berth"] or (by_chance and all(node for node, _, _ in results.values()))
    return called["berth"], results["berth"]


async def compared_calls(seen: ClusterUser, extender: RecordingExtender, resource: str = "") -> tuple:
    """The same where several nodes are equally good: both choose one by chance."""
    return await compared(seen, extender, resource, by_chance=True)


async def _is_gone(seen: ClusterUser) -> bool:
    return "web" not in await seen.pods()


@pytest.mark.parametrize(
    ("resource", "calls", "result"),
    [
        pytest.param("names", ["names/filter", "everything/filter", "names/prioritize"], ("2", "", ""), id="names"),
        pytest.param("nodes", ["nodes/filter", "everything/filter", "nodes/prioritize"], ("2", "", ""), id="nodes"),
        pytest.param(
            "strict",
            ["strict/filter"],
            (
                "",
                "SchedulerError",
                "failed filter with extender at URL URL/strict/filter, code 503",
            ),
            id="an error",
        ),
        pytest.param("error", ["error/filter"], ("", "SchedulerError", "no licence"), id="an error in words"),
        pytest.param(
            "fussy",
            ["fussy/filter"],
            ("", "Unschedulable", "0/4 nodes are available: 1 too small, 2 too far."),
            id="no node",
        ),
        pytest.param("silent", ["silent/filter"], ("", "Unschedulable", "0/4 nodes are available:"), id="no word"),
        pytest.param(
            "stranger",
            ["stranger/filter"],
            (
                "",
                "SchedulerError",
                'extender "URL/stranger" claims a filtered node "elsewhere" which is not found in the input node list',
            ),
            id="a node that is not there",
        ),
        pytest.param(
            "limited",
            [],
            ("", "Unschedulable", "0/4 nodes are available: 4 Insufficient example.com/limited."),
            id="a resource that the scheduler counts",
        ),
    ],
)
async def test_extenders_are_asked_as_kube_scheduler_asks_them(both, cluster, extender, resource, calls, result):
    called, (node, reason, message) = await compared(cluster, extender, resource)
    assert called == calls
    assert (node, reason) == result[:2]
    assert message.startswith(result[2])


async def test_an_extender_that_may_be_ignored_is(both, cluster, extender):
    called, (node, _, _) = await compared_calls(cluster, extender, "ignorable")
    assert called == ["everything/filter", "ignorable/filter"]
    assert node


async def test_points_that_cannot_be_read_do_not_count(both, cluster, extender):
    called, (node, _, _) = await compared_calls(cluster, extender, "unranked")
    assert called == ["unranked/filter", "everything/filter", "unranked/prioritize"]
    assert node in {"0", "3"}


async def test_a_pod_of_no_extender_goes_only_to_those_without_resources(both, cluster, extender):
    called, (node, _, _) = await compared_calls(cluster, extender)
    assert called == ["everything/filter"]
    assert node


async def test_what_an_init_container_asks_for_counts(both, cluster, extender):
    called, result = await compared(cluster, extender, "names", initially=True)
    assert called[0] == "names/filter"
    assert result[0] == "2"


async def test_an_extender_binds_its_pods(both, cluster, extender):
    """Neither scheduler binds them: a Binding of its own would be refused, as the pod has a node by then."""
    loop, answers = asyncio.get_running_loop(), []

    def bind(args: dict) -> dict:
        work = cluster.bind(args["PodName"], args["Node"])
        answers.append(asyncio.run_coroutine_threadsafe(work, loop).result(10).code)
        return {}

    extender.answers["binder/bind"] = bind
    called, result = await compared(cluster, extender, "binder")
    assert called == ["binder/filter", "everything/filter", "binder/bind"]
    assert result == ("3", "", "")
    assert answers == [201, 201]


async def test_what_an_extender_says_when_it_does_not_bind_is_on_the_pod(both, cluster, extender):
    extender.answers["binder/bind"] = lambda _: {"Error": "the device is gone"}
    called, result = await compared(cluster, extender, "binder")
    assert called == ["binder/filter", "everything/filter", "binder/bind"]
    assert result == ("", "SchedulerError", "the device is gone")


async def test_a_pod_that_an_extender_has_bound_without_saying_so_is_bound(both, cluster, extender):
    loop = asyncio.get_running_loop()

    def bind(args: dict) -> Raw:
        work = cluster.bind(args["PodName"], args["Node"])
        assert asyncio.run_coroutine_threadsafe(work, loop).result(10).code == 201
        return Raw(500)

    extender.answers["binder/bind"] = bind
    _, result = await compared(cluster, extender, "binder")
    assert result == ("3", "", "")


async def preempted(
    seen: ClusterUser, extender: RecordingExtender, caller: str, resource: str, *, each: int = 1
) -> tuple[dict, str, str, set[str]]:
    """An important pod on full nodes: what was asked about evictions, its node or message, and who was evicted."""
    lows = {f"low-{number}-{node}": node for number in range(each) for node in seen.nodes}
    at_once = {"terminationGracePeriodSeconds": 0}
    cpu = f"{3 // each}"
    await seen.create(
        seen.pod(name, node=node, scheduler="nobody", cpu=cpu, spec=at_once) for name, node in lows.items()
    )
    names = {pod["metadata"]["uid"]: name for name, pod in (await seen.pods()).items()}
    wanted = {"requests": {gpu(resource): "1", "cpu": "2"}, "limits": {gpu(resource): "1", "cpu": "2"}}
    container = {"name": "first", "image": "i", "resources": wanted, "env": [{"name": "PASSWORD", "value": "hunter2"}]}
    spec = {"schedulerName": caller, "containers": [container], "priorityClassName": f"{seen.namespace}-vip"}
    extender.requests.clear()
    await seen.create([seen.pod("vip", spec=spec)])

    async def asked() -> dict | None:
        """The first question that names these pods on each node.

        The view on which berth ranks may lag behind: it still has pods of before, which have no name here, and lacks
        these. When it has these, berth asks again.
        """
        for request in extender.of(caller):
            by_node = request.body["NodeNameToMetaVictims"] if request.path.endswith("/preempt") else {}
            question = {
                last(name): (
                    [names[each["UID"]] for each in victims["Pods"] if each["UID"] in names],
                    victims["NumPDBViolations"],
                )
                for name, victims in by_node.items()
            }
            if question and all(victims for victims, _ in question.values()):
                return question
        return None

    async def settled() -> tuple[str, str] | None:
        vip = (await seen.pods())["vip"]  # read once: the nomination ends when the pod is bound
        node, condition, evicts = node_of(vip), condition_of(vip), "nominatedNodeName" in vip["status"]
        return (last(node), condition.get("message", "")) if node or (condition and not evicts) else None

    question = await eventually(asked, "the extender to be asked about these pods")
    node, message = await eventually(settled, "the pod to have a node, or none")
    evicted = {name for name in lows if name not in await seen.pods()}
    sent = [request.body["Pod"] for request in extender.of(caller) if request.path.endswith("/preempt")]
    assert all(pod["spec"]["containers"][0]["env"] == container["env"] for pod in sent)
    for name in await seen.pods():
        await seen.delete_pod(name)
    return question, node, message.replace(f"{extender.url}/{caller}", "URL"), evicted


def left(*numbers: str, changed: dict | None = None) -> Say:
    """Leaves the evictions on these nodes."""

    def say(args: dict) -> dict:
        asked = args["NodeNameToMetaVictims"]
        return {"NodeNameToMetaVictims": {name: changed or asked[name] for name in asked if last(name) in numbers}}

    return say


@pytest.mark.parametrize(
    ("resource", "answer", "node", "message"),
    [
        pytest.param("picky", left("2"), "2", "", id="one node is left"),
        pytest.param("picky", left(), "", "no candidate node for preemption", id="none is left"),
        pytest.param("picky", lambda _: {}, "", "no candidate node for preemption", id="nothing is said"),
        pytest.param(
            "picky",
            lambda _: Raw(503),
            "",
            "failed preempt with extender at URL URL/picky/preempt, code 503",
            id="it fails",
        ),
        pytest.param(
            "picky", left("1", changed={"Pods": []}), "", "expected at least one victim pod on node", id="no victims"
        ),
        pytest.param("lenient", left("1", changed={"Pods": []}), "", "no candidate node", id="no victims, ignorable"),
    ],
)
async def test_an_extender_says_which_evictions_it_leaves(both, cluster, extender, resource, answer, node, message):
    extender.answers[f"{resource}/preempt"] = answer
    await cluster.add_priority_class("vip", 100_000)
    found = {caller: await preempted(cluster, extender, caller, resource) for caller in CALLERS}
    assert found["kube"] == found["berth"]
    asked, where, why, evicted = found["berth"]
    assert asked == {last(name): ([f"low-0-{name}"], 0) for name in cluster.nodes}
    assert (where, evicted) == (node, {f"low-0-{name}" for name in cluster.nodes if last(name) == node})
    assert message in why


async def test_an_extender_that_may_be_ignored_stops_no_eviction(both, cluster, extender):
    extender.answers["lenient/preempt"] = lambda _: Raw(500)
    await cluster.add_priority_class("vip", 100_000)
    for caller in CALLERS:
        _, where, _, evicted = await preempted(cluster, extender, caller, "lenient")
        assert len(evicted) == 1
        assert next(iter(evicted)).endswith(where)


async def test_berth_evicts_no_others_than_those_it_has_found_itself(both, cluster, extender):
    """Which pods are evicted is not for others to say: a node for which an extender names others is left out."""
    uids: list[str] = []

    def another(args: dict) -> dict:
        asked = args["NodeNameToMetaVictims"]
        return {
            "NodeNameToMetaVictims": {
                name: {"Pods": [*victims["Pods"], *uids] if last(name) != "3" else victims["Pods"]}
                for name, victims in asked.items()
            }
        }

    extender.answers["picky/preempt"] = another
    uids.append({"UID": "somebody-else"})
    await cluster.add_priority_class("vip", 100_000)
    _, where, _, evicted = await preempted(cluster, extender, "berth", "picky", each=3)
    assert where == "3"
    assert all(name.endswith("-3") for name in evicted)
