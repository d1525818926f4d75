"""Where the API server is and who berth is there: kubeconfigs good and bad, and tokens that grow old."""

import asyncio
import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from berth.kube import credentials as credentials_module
from berth.kube import kubeconfig as kubeconfig_module
from berth.kube.credentials import KubeCredentials
from berth.kube.errors import KubeconfigError
from berth.kube.kubeconfig import InClusterAccount, Kubeconfig, source_for


@pytest.fixture(autouse=True)
def _a_busy_machine_is_no_slow_plugin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(credentials_module, "PATIENCE", timedelta(seconds=60))


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def _write(path: Path, *, user: dict | None = None, server: str = "http://127.0.0.1:1", **overrides: object) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        **overrides,
    }
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path


async def _refusal(source: Kubeconfig | InClusterAccount) -> str:
    with pytest.raises(KubeconfigError) as refused:
        await source.read()
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_token_and_server_are_taken_from_the_current_context(tmp_path: Path):
    path = _write(tmp_path / "kubeconfig", user={"token": "secret"}, server="http://127.0.0.1:8001/")
    credentials = await KubeCredentials.from_source(Kubeconfig(path))
    assert credentials.server == "http://127.0.0.1:8001"
    assert await credentials.headers() == {"Authorization": "Bearer secret"}


async def test_context_may_be_named(tmp_path: Path):
    clusters = [{"name": name, "cluster": {"server": f"http://{name}"}} for name in ("k", "other")]
    contexts = [{"name": name, "context": {"cluster": name, "user": "u"}} for name in ("k", "other")]
    path = _write(tmp_path / "kubeconfig", clusters=clusters, contexts=contexts, **{"current-context": "k"})
    assert (await Kubeconfig(path, context="other").read()).server == "http://other"


async def test_cluster_without_a_user_is_asked_without_a_name(tmp_path: Path):
    path = _write(tmp_path / "kubeconfig", users=[])
    assert await (await KubeCredentials.from_source(Kubeconfig(path))).headers() == {}


async def test_what_nobody_asks_for_may_lack_fields(tmp_path: Path):
    clusters = [{"name": "k", "cluster": {"server": "http://k"}}, {"name": "half"}]
    contexts = [{"name": "c", "context": {"cluster": "k"}}, {"name": "half", "context": {"namespace": "n"}}]
    path = _write(tmp_path / "kubeconfig", clusters=clusters, contexts=contexts, users=[{"name": "half"}])
    assert (await Kubeconfig(path).read()).server == "http://k"
    assert (
        await _refusal(Kubeconfig(path, context="half")) == f"reading kubeconfig '{path}': field 'cluster' is missing"
    )


async def test_kubeconfig_variable_names_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = _write(tmp_path / "first", server="http://first")
    monkeypatch.setenv(
        "KUBECONFIG", f"{tmp_path}/missing:{first}:{_write(tmp_path / 'second', server='http://second')}"
    )
    assert (await source_for(None).read()).server == "http://first"


async def test_each_file_is_looked_for_beside_the_kubeconfig_that_names_it(tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first = _write(tmp_path / "a" / "kubeconfig", users=[])
    second = _write(tmp_path / "b" / "kubeconfig", user={"tokenFile": "token"}, server="http://second")
    (tmp_path / "b" / "token").write_text("beside b")
    access = await Kubeconfig(f"{first}:{second}").read()
    assert (access.server, access.authorization) == ("http://127.0.0.1:1", "Bearer beside b")


async def test_kubeconfig_that_does_not_exist_is_said_so(tmp_path: Path):
    refusal = await _refusal(Kubeconfig(tmp_path / "nowhere"))
    assert refusal == f"reading kubeconfig '{tmp_path}/nowhere': no such file: name a file with --kubeconfig"


async def test_a_folder_in_place_of_a_kubeconfig_is_said_so(tmp_path: Path):
    refusal = await _refusal(Kubeconfig(tmp_path))
    assert refusal == f"reading kubeconfig '{tmp_path}': is a directory: name a file with --kubeconfig"


async def test_a_file_that_is_not_there_is_named_with_its_field(tmp_path: Path):
    users = [{"name": "u", "user": {"tokenFile": "nowhere"}}]
    refusal = await _refusal(Kubeconfig(_write(tmp_path / "kubeconfig", users=users)))
    assert refusal == f"reading kubeconfig '{tmp_path}/kubeconfig': tokenFile: there is no file '{tmp_path}/nowhere'"


async def test_kubeconfig_without_a_current_context_says_how_to_set_one(tmp_path: Path):
    refusal = await _refusal(Kubeconfig(_write(tmp_path / "kubeconfig", **{"current-context": None})))
    assert refusal.endswith("it has no current-context: set one with `kubectl config use-context NAME`")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param("", "it is empty: want clusters", id="empty"),
        pytest.param("{]", "", id="no YAML"),
        pytest.param("hello", "does not have the form of a kubeconfig", id="no mapping"),
        pytest.param("contexts: {a: b}", "Expected `array | null`, got `object` - at `$.contexts`", id="no list"),
        pytest.param(
            "clusters: [{name: a, cluster: 5}]",
            "Expected `object | null`, got `int` - at `$.clusters[0].cluster`",
            id="no mapping of a cluster",
        ),
        pytest.param(
            "{current-context: c, contexts: [{name: c, context: {cluster: k}}],"
            " clusters: [{name: k, cluster: {server: 5}}]}",
            "its cluster has the server 5: want a URL",
            id="no text",
        ),
        pytest.param(
            "{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [{name: k, cluster: {}}]}",
            "field 'server' is missing",
            id="no server",
        ),
        pytest.param('{"current-context": "c", "contexts": []}', "contexts: want one named 'c'", id="no such context"),
    ],
)
async def test_file_that_is_no_kubeconfig_is_refused_in_one_sentence(tmp_path: Path, text: str, cause: str):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    refusal = await _refusal(Kubeconfig(path))
    assert refusal.startswith(f"reading kubeconfig '{path}': ")
    assert cause in refusal


async def test_certificate_that_is_missing_is_named(tmp_path: Path):
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": "missing.crt"}
    path = _write(tmp_path / "kubeconfig", clusters=[{"name": "k", "cluster": cluster}])
    assert f"{tmp_path}/missing.crt" in await _refusal(Kubeconfig(path))


async def test_server_that_is_no_url_is_quoted(tmp_path: Path):
    assert "has the server 'here'" in await _refusal(Kubeconfig(_write(tmp_path / "kubeconfig", server="here")))


async def test_proxy_is_the_kubeconfigs_or_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "inside.example.com")
    monkeypatch.setenv("https_proxy", "proxy:3128")
    for server, named, proxy in (
        ("https://api.example.com", None, "http://proxy:3128"),
        ("https://api.example.com", "https://me:x@other:443", "https://me:x@other:443"),
        ("https://inside.example.com", None, None),
        ("https://127.0.0.1:6443", None, None),
    ):
        cluster = {"server": server, **({"proxy-url": named} if named else {})}
        path = _write(tmp_path / "kubeconfig", clusters=[{"name": "k", "cluster": cluster}])
        assert (await Kubeconfig(path).read()).proxy == proxy


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "ftp"])
async def test_proxy_that_cannot_be_used_is_refused_without_its_password(tmp_path: Path, scheme: str):
    cluster = {"server": "https://api.example.com", "proxy-url": f"{scheme}://me:hunter2@proxy:1080"}
    refusal = await _refusal(Kubeconfig(_write(tmp_path / "kubeconfig", clusters=[{"name": "k", "cluster": cluster}])))
    assert refusal.endswith("the proxy 'proxy:1080': want one that begins with http:// or https://")


async def test_outside_of_a_pod_there_is_no_account(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert (
        await _refusal(InClusterAccount()) == "reading the service account of this pod: Service host/port is not set."
    )


def test_in_a_pod_the_account_is_used_unless_a_kubeconfig_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert isinstance(source_for(None), InClusterAccount)
    assert isinstance(source_for("/etc/kubeconfig"), Kubeconfig)


async def test_token_file_is_read_again_when_it_has_grown_old(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("one\n")
    clock = ManualClock()
    source = Kubeconfig(_write(tmp_path / "kubeconfig", user={"tokenFile": "token"}))
    credentials = await KubeCredentials.from_source(source, clock=clock)
    token.write_text("two\n")
    clock.seconds = 59
    assert await credentials.headers() == {"Authorization": "Bearer one"}
    clock.seconds = 60
    assert await credentials.headers() == {"Authorization": "Bearer two"}


async def test_token_file_that_is_gone_leaves_the_token_of_before(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("one")
    clock = ManualClock()
    source = Kubeconfig(_write(tmp_path / "kubeconfig", user={"tokenFile": "token"}))
    credentials = await KubeCredentials.from_source(source, clock=clock)
    token.unlink()
    clock.seconds = 60
    assert await credentials.headers() == {"Authorization": "Bearer one"}
    token.write_text("two")
    clock.seconds = 70
    assert await credentials.headers() == {"Authorization": "Bearer two"}


def _exec_user(tmp_path: Path, status: str) -> dict:
    """A plugin that counts how often it ran, in the token that it gives."""
    program = (
        "import datetime, json, pathlib; "
        f"runs = pathlib.Path({str(tmp_path / 'runs')!r}); "
        "n = len(runs.read_text()) + 1 if runs.exists() else 1; "
        "runs.write_text('x' * n); "
        "soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=10); "
        "until = soon.strftime('%Y-%m-%dT%H:%M:%SZ'); "
        f"status = {status}; "
        "answer = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', 'status': status}; "
        "print(json.dumps(answer))"
    )
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", program]}
    return {"exec": command}


@pytest.mark.slow
async def test_exec_plugin_runs_once_until_its_token_is_about_to_expire(tmp_path: Path):
    user = _exec_user(tmp_path, "{'token': f'run-{n}', 'expirationTimestamp': until}")
    clock = ManualClock()
    credentials = await KubeCredentials.from_source(Kubeconfig(_write(tmp_path / "kubeconfig", user=user)), clock=clock)
    clock.seconds = 8 * 60
    assert await credentials.headers() == {"Authorization": "Bearer run-1"}
    clock.seconds = 9 * 60 + 1
    together = await asyncio.gather(*(credentials.headers() for _ in range(5)))
    assert together == [{"Authorization": "Bearer run-2"}] * 5


@pytest.mark.slow
async def test_exec_token_without_expiry_is_kept_until_it_is_refused(tmp_path: Path):
    user = _exec_user(tmp_path, "{'token': f'run-{n}'}")
    clock = ManualClock()
    credentials = await KubeCredentials.from_source(Kubeconfig(_write(tmp_path / "kubeconfig", user=user)), clock=clock)
    clock.seconds = 1e6
    refused = await credentials.headers()
    assert refused == {"Authorization": "Bearer run-1"}
    assert await credentials.renew(refused) == {"Authorization": "Bearer run-2"}
    assert await credentials.renew(refused) == {"Authorization": "Bearer run-2"}


@pytest.mark.slow
async def test_exec_plugin_without_a_token_and_a_certificate_is_refused(tmp_path: Path):
    user = _exec_user(tmp_path, "{'clientCertificateData': 'canary'}")
    refusal = await _refusal(Kubeconfig(_write(tmp_path / "kubeconfig", user=user)))
    assert refusal.endswith("exec: want a token, or clientCertificateData and clientKeyData")


@pytest.mark.slow
async def test_certificate_of_an_exec_plugin_expires_like_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(credentials_module, "_tls_of", lambda files, verify: files)
    user = _exec_user(
        tmp_path, "{'clientCertificateData': f'c{n}', 'clientKeyData': 'k', 'expirationTimestamp': until}"
    )
    access = await Kubeconfig(_write(tmp_path / "kubeconfig", user=user, server="https://127.0.0.1:1")).read()
    assert access.token_age is not None
    assert timedelta(minutes=8) < access.token_age < timedelta(minutes=10)
    files = [Path(name) for name, _ in access.tls[1:]]
    assert [file.read_text() for file in files] == ["c1", "k"]


async def test_account_of_the_pod_is_read_again_each_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kubeconfig_module, "ACCOUNT", tmp_path)
    monkeypatch.setattr(credentials_module, "_tls_of", lambda files, verify: files)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "ca.crt").write_text("certificate")
    (tmp_path / "token").write_text("one\n")
    clock = ManualClock()
    credentials = await KubeCredentials.from_source(InClusterAccount(), clock=clock)
    (tmp_path / "token").write_text("two\n")
    assert (credentials.server, await credentials.headers()) == (
        "https://[fd00::1]:443",
        {"Authorization": "Bearer one"},
    )
    clock.seconds = 60
    assert await credentials.headers() == {"Authorization": "Bearer two"}


@pytest.mark.slow
async def test_exec_plugin_that_fails_is_quoted(tmp_path: Path):
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", "raise SystemExit('log in first')"],
    }
    refusal = await _refusal(Kubeconfig(_write(tmp_path / "kubeconfig", user={"exec": command})))
    assert "log in first" in refusal


def _hanging(tmp_path: Path) -> dict:
    """A plugin that gives a token at its first run, and hangs with a child of its own from then on."""
    program = (
        "import json, pathlib, subprocess, sys, time; "
        f"runs = pathlib.Path({str(tmp_path / 'runs')!r}); "
        "child = runs.exists() and subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "child and runs.with_name('child').write_text(str(child.pid)); "
        "child and time.sleep(600); "
        "runs.write_text('x'); "
        "status = {'token': 'first', 'expirationTimestamp': '2020-01-01T00:00:00Z'}; "
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', "
        "'status': status}))"
    )
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", program]}
    return {"exec": command}


@pytest.mark.slow
async def test_exec_plugin_that_hangs_holds_up_no_request_that_has_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(credentials_module, "PATIENCE", timedelta(milliseconds=50))
    monkeypatch.setattr(kubeconfig_module, "PLUGIN_DEADLINE", timedelta(seconds=4))
    clock = ManualClock()
    path = _write(tmp_path / "kubeconfig", user=_hanging(tmp_path))
    credentials = await KubeCredentials.from_source(Kubeconfig(path), clock=clock)
    clock.seconds = 11
    async with asyncio.timeout(30):
        for _ in range(100):
            assert await credentials.headers() == {"Authorization": "Bearer first"}
    (reading,) = (task for task in asyncio.all_tasks() if task.get_name() == "credentials")
    assert not reading.done()
    await reading


@pytest.mark.slow
async def test_exec_plugin_that_hangs_is_killed_with_its_children_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = _write(tmp_path / "kubeconfig", user=_hanging(tmp_path))
    credentials = await KubeCredentials.from_source(Kubeconfig(path))
    monkeypatch.setattr(kubeconfig_module, "PLUGIN_DEADLINE", timedelta(seconds=4))
    with pytest.raises(KubeconfigError, match=r"gave no answer within 4 s"):
        await credentials.renew(await credentials.headers())
    child = int((tmp_path / "child").read_text())
    await _until(lambda: not _runs(child))


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_password_in_the_servers_url_is_sent_and_never_shown(tmp_path: Path):
    path = _write(tmp_path / "kubeconfig", server="http://who:s%40cret@127.0.0.1:8001/base/")
    credentials = await KubeCredentials.from_source(Kubeconfig(path))
    assert credentials.server == "http://127.0.0.1:8001/base"
    assert await credentials.headers() == {"Authorization": f"Basic {b64encode(b'who:s@cret').decode()}"}
    for odd in ("ftp://who:cret@127.0.0.1", "https:/who:cret@127.0.0.1"):
        refusal = await _refusal(Kubeconfig(_write(tmp_path / "other", server=odd)))
        assert "cret" not in refusal


@pytest.mark.parametrize(
    "users",
    [
        pytest.param([{"name": "u", "token": "canary"}], id="a user without its user"),
        pytest.param(
            [{"name": "u", "user": {"token": "canary", "exec": {"args": []}}}], id="a plugin without a command"
        ),
        pytest.param([{"token": "canary"}], id="a user without a name"),
    ],
)
async def test_refusal_does_not_quote_the_token(tmp_path: Path, users: list):
    source = Kubeconfig(_write(tmp_path / "kubeconfig", users=users))
    (result,) = await asyncio.gather(source.read(), return_exceptions=True)
    assert isinstance(result, KubeconfigError)
    assert "canary" not in str(result)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "a: &a [1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"{after}: &{after} [{','.join([f'*{before}'] * 8)}]\n" for before, after in pairwise("abcdefgh")
            ),
            id="aliases of aliases",
        ),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("a: " + "9" * 5000, id="a long number"),
    ],
)
async def test_kubeconfig_that_would_take_too_much_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    assert "not YAML: " in await _refusal(Kubeconfig(path))


async def test_certificates_in_the_file_itself_are_used(tmp_path: Path):
    authority = b64encode(b"canary").decode()
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": authority}
    refusal = await _refusal(Kubeconfig(_write(tmp_path / "kubeconfig", clusters=[{"name": "k", "cluster": cluster}])))
    assert "canary" not in refusal
    assert "certificate" in refusal.lower()


async def test_user_of_an_auth_provider_is_left_to_the_client_library(tmp_path: Path):
    claims = b64encode(json.dumps({"exp": 4_000_000_000}).encode()).decode().rstrip("=")
    provider = {"name": "oidc", "config": {"id-token": f"head.{claims}.signature"}}
    path = _write(tmp_path / "kubeconfig", user={"auth-provider": provider})
    credentials = await KubeCredentials.from_source(Kubeconfig(path))
    assert await credentials.headers() == {"Authorization": f"Bearer head.{claims}.signature"}


@pytest.mark.slow
def test_the_namespace_alone_needs_no_import_of_the_client_library(tmp_path: Path):
    path = _write(tmp_path / "kubeconfig", user={"token": "secret"})
    program = (
        "import sys; from berth.kube.kubeconfig import Kubeconfig; "
        f"Kubeconfig({str(path)!r}).namespace(); sys.exit('kubernetes_asyncio' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
