"""Two daemons with TLS and roles: they train, they refuse, they renew, and they keep secrets."""

from __future__ import annotations

import base64
import re
import shutil
import socket
import ssl
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

import atta
from atta import _native
from atta.cli.main import cli
from atta.client.cluster import connect_all
from atta.kvstore.spec import MutableSpec
from atta.train import TrainConfig, fit
from atta.wire.clusterfile import resolve_target, write_cluster
from atta.wire.credentials import Credentials
from atta.wire.tokens import ROLES, Role, TokenFile, issue, read_tokens
from tests.system.conftest import SmallGraph
from tests.system.test_failover import digest
from tests.unit.security.authority import Authority
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

LOADER = {"num_neighbors": [4, 3], "input_nodes": "train", "batch_size": 16, "seed": 3}


@dataclass
class Guarded:
    """A cluster that asks every caller for a certificate, and what may be brought to it."""

    cluster: atta.LocalCluster
    authority: Authority
    tokens: dict[str, str]
    expired: dict[str, str]
    folder: Path
    options: tuple[str, ...]

    @property
    def secrets(self) -> list[str]:
        """The secret part of every token, and every line of every key."""
        found = [token.rpartition("-")[2] for token in (*self.tokens.values(), *self.expired.values())]
        keys = [file.read_text() for file in self.authority.folder.glob("*.key")]
        found += [line for key in keys for line in key.splitlines() if len(line) > 20 and "PRIVATE" not in line]
        assert len(found) > 15
        return found

    def caller(self, *roles: str) -> Credentials:
        return self.authority.certificate(f"caller-{'-'.join(roles) or 'none'}", *roles)

    def with_token(self, token: str) -> Credentials:
        path = self.folder / f"token-{token[5:17]}"
        path.write_text(token)
        return replace(self.caller(), token=str(path))

    def cluster_file(self, *roles: str) -> Path:
        path = self.folder / f"cluster-{'-'.join(roles)}.toml"
        write_cluster(path, self.cluster.addresses, self.caller(*roles))
        return path

    def logs(self) -> str:
        return "".join(file.read_text() for file in self.cluster.cluster_file.parent.glob("*.log"))


@pytest.fixture(scope="module")
def guarded(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority.in_folder(folder / "authority")
    own = authority.certificate("daemon", "peer", hosts=("127.0.0.1",))
    tokens, expired = authority.tokens(), authority.tokens(valid=timedelta(seconds=-1))
    options = ("--tls-ca", own.ca, "--tls-cert", own.cert, "--tls-key", own.key, "--tokens", str(authority.token_file))
    everything = authority.certificate("caller-all", "reader", "writer", "operator")
    how = {"threads": 1, "log_level": "debug", "options": (*options, "--cache", "0"), "credentials": everything}
    with atta.local(small_graph.dataset(2, "metis"), **how) as cluster:
        yield Guarded(cluster, authority, tokens, expired, folder, options)


@pytest.fixture(scope="module")
def plain(small_graph: SmallGraph) -> Iterator[atta.LocalCluster]:
    with atta.local(small_graph.dataset(2, "metis"), threads=1, options=("--cache", "0")) as cluster:
        yield cluster


def atta_command(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atta.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_batches_are_the_same_and_rows_come_over_links(guarded: Guarded, plain: atta.LocalCluster) -> None:
    with atta.connect(guarded.cluster_file("reader")) as reader:
        ours, others = ([digest(b) for b in atta.NeighborLoader(c, **LOADER)] for c in (reader, plain))
    assert ours == others
    stats = guarded.cluster.stats()
    assert sum(of["link_requests_served"] for of in stats) > 0
    assert sum(of["links_missing"] for of in stats) == 0


def test_training_is_the_same(guarded: Guarded, plain: atta.LocalCluster) -> None:
    config = TrainConfig(
        cluster=str(guarded.cluster_file("reader")), trainers=1, epochs=1, num_neighbors=(4, 3), batch_size=16,
        hidden=8, seed=1, device="cpu", verbose=False,
    )  # fmt: skip
    over_tls = fit(config)
    without = fit(replace(config, cluster=str(plain.cluster_file)))
    assert [e.loss for e in over_tls.epochs] == pytest.approx([e.loss for e in without.epochs], rel=1e-5)


def test_all_that_daemons_open_asks_who_comes(guarded: Guarded) -> None:
    """One port each for gRPC, which speaks TLS, and one for links, which closes on whoever has no token."""
    for pid, address in zip(guarded.cluster.pids, guarded.cluster.addresses, strict=True):
        found = psutil.Process(pid).net_connections(kind="inet")
        ports = {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN} - {int(address.rpartition(":")[2])}
        assert len(ports) == int(_native.link_tls)
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
                stranger.sendall(b"x" * 16)
                assert stranger.recv(4) == b""


def test_a_token_gives_its_roles_and_no_more(guarded: Guarded) -> None:
    spec = MutableSpec("t", 10, row_shape=(2,))
    with atta.connect(guarded.cluster.addresses, credentials=guarded.with_token(guarded.tokens["reader"])) as reader:
        assert len(list(atta.NeighborLoader(reader, **LOADER))) > 0
        with pytest.raises(atta.NotAllowedError, match="needs the role writer; certificate caller-none and token"):
            reader.tables.create(spec)
    with atta.connect(guarded.cluster.addresses, credentials=guarded.with_token(guarded.tokens["writer"])) as writer:
        assert writer.tables.create(spec).spec.name == "t"
        with pytest.raises(atta.NotAllowedError, match="needs the role operator"):
            writer.tables.save("kept")
        with pytest.raises(atta.NotAllowedError, match="needs the role reader"):
            next(iter(atta.NeighborLoader(writer, **LOADER)))
        assert writer.tables.delete("t")


def test_bad_credentials_are_named(guarded: Guarded, tmp_path: Path) -> None:
    addresses = guarded.cluster.addresses
    stranger = Authority.in_folder(tmp_path / "stranger").certificate("caller-none", "operator")
    forged = guarded.tokens["all"][:-4] + ("0000" if not guarded.tokens["all"].endswith("0000") else "1111")
    good = guarded.caller("reader")
    for credentials, error, words in [
        (guarded.with_token(guarded.expired["all"]), atta.NotAuthenticatedError, "has expired"),
        (guarded.with_token(forged), atta.NotAuthenticatedError, "the token is unknown"),
        (guarded.caller(), atta.NotAllowedError, "certificate caller-none has none"),
        (stranger, atta.NotAuthenticatedError, "not of the authority that you trust"),
        (Credentials(good.ca), atta.UnavailableError, "none is given: name cert and key in .tls. of the cluster file"),
        (
            replace(good, cert=stranger.cert, key=stranger.key),
            atta.UnavailableError,
            f"{stranger.cert} may have expired",
        ),
    ]:
        with pytest.raises(error, match=words) as caught:
            atta.connect(addresses, credentials=credentials)
        told = "".join(traceback.format_exception(caught.value))
        assert all(token.rpartition("-")[2] not in told for token in (forged, *guarded.tokens.values()))
    with pytest.raises(atta.UnavailableError, match="none are given: name ca, cert and key"):
        connect_all(resolve_target(addresses), None)


def test_a_daemon_without_tls_is_no_daemon_for_a_caller_with_it(guarded: Guarded, plain: atta.LocalCluster) -> None:
    with pytest.raises(atta.NotAuthenticatedError, match="the daemon has none; start it with --tls-cert"):
        atta.connect(plain.addresses, credentials=guarded.with_token(guarded.tokens["all"]))


@pytest.mark.parametrize("command", [("stop", "--cluster"), ("roll", "--allow-pause")])
def test_a_caller_without_the_role_stops_nothing_and_reads_one_line(guarded: Guarded, command: tuple[str, ...]) -> None:
    """Commands find their credentials in the cluster file."""
    refused = atta_command(*command, guarded.cluster_file("reader"))
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert refused.stderr.count("needs the role operator") == 1
    assert "call refused" in guarded.logs()
    done = atta_command("status", "--cluster", guarded.cluster_file("reader"), "--interval", "100ms")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" serving ") == 2


def commands_by_role() -> dict[str, set[str]]:
    """The table in docs/guide/security.md: the roles of which a command needs one."""
    text = (Path(__file__).parents[2] / "docs/guide/security.md").read_text()
    rows = re.findall(r"^\| (`atta .*?`) \| (`.*?`) \|$", text, re.MULTILINE)
    return {name: set(re.findall(r"`(.+?)`", roles)) for names, roles in rows for name in re.findall(r"`(.+?)`", names)}


METHODS = {
    "atta dashboard": ("ControlService/Stats", "ControlService/Sessions"),
    "atta tables load": ("TableService/Load",),
    "atta tables delete": ("TableService/Delete",),
    "atta tables promote": ("BackupService/Promote",),
    "atta update features": ("UpdateService/Publish",),
    "atta update edges": ("UpdateService/Publish",),
    "atta roll": ("ControlService/Stop",),
    "atta stop": ("ControlService/Stop",),
}
"""Commands that would change what other tests read, or end the daemons, and the methods that need most of them."""


def test_commands_need_the_roles_that_the_document_names(guarded: Guarded, tmp_path: Path) -> None:
    """Each role alone: what is not refused may go wrong for other reasons."""
    model = ["--checkpoint", str(tmp_path / "run")]
    words = {
        "atta status": ["--interval", "100ms"],
        "atta top": ["--interval", "100ms", "--once", "--json", "-"],
        "atta tables list": [],
        "atta tables save": ["kept"],
        "atta trace": ["--seconds", "0", "--out", str(tmp_path / "trace.json")],
        "atta train": [
            "--epochs",
            "1",
            "--trainers",
            "1",
            "--num-neighbors",
            "2,2",
            "--layers",
            "2",
            *model,
            "--overwrite",
        ],
        "atta predict": ["--out", str(tmp_path / "ROLE"), *model],
    }
    documented = commands_by_role()
    assert documented.keys() == {*words, *METHODS}
    for command, more in words.items():
        for role in ("reader", "writer", "operator", "peer"):
            mine = [word.replace("ROLE", role) for word in more]
            arguments = [*command.split()[1:], *mine, "--cluster", str(guarded.cluster_file(role))]
            done = CliRunner().invoke(cli, arguments)
            refused = "needs the role" in f"{done.output}{done.exception}"
            assert refused != (role in documented[command]), (command, role, done.output, done.exception)
    layers = ["predict", "--out", str(tmp_path / "both"), *model, "--what", "classes", "--cluster"]
    assert "needs the role writer" in str(
        CliRunner().invoke(cli, [*layers, str(guarded.cluster_file("reader"))]).exception
    )
    shutil.rmtree(tmp_path / "both", ignore_errors=True)
    assert CliRunner().invoke(cli, [*layers, str(guarded.cluster_file("reader", "writer"))]).exit_code == 0
    for command, methods in METHODS.items():
        for method in methods:
            assert {role.value for role in ROLES[f"atta.v1.{method}"]} == documented[command]


def test_secrets_appear_nowhere(guarded: Guarded) -> None:
    """After refusals, errors and traces of all kinds."""
    traces = repr(guarded.cluster.trace())
    lists = [" ".join(p.cmdline()) + repr(p.environ()) for p in map(psutil.Process, guarded.cluster.pids)]
    told = "".join([guarded.logs(), traces, repr(guarded.cluster.stats()), *lists])
    assert "call refused" in told
    assert [secret for secret in guarded.secrets if secret in told] == []


def _shown(address: str, credentials: Credentials) -> bytes:
    context = ssl.create_default_context(cafile=credentials.ca)
    context.load_cert_chain(credentials.cert, credentials.key)
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_new_certificate_is_shown_while_sessions_go_on(guarded: Guarded) -> None:
    files = guarded.authority.certificate("daemon")
    fresh = guarded.authority.certificate("renewed", "peer", hosts=("127.0.0.1",))
    address, caller = guarded.cluster.addresses[0], guarded.caller("reader")
    batches = iter(atta.NeighborLoader(guarded.cluster, **LOADER))
    next(batches)
    before = _shown(address, caller)
    Path(fresh.key).replace(files.key)
    Path(fresh.cert).replace(files.cert)
    wanted = base64.b64decode("".join(Path(files.cert).read_text().splitlines()[1:-1]))
    assert before != wanted
    assert _shown(address, caller) == wanted
    assert len(list(batches)) == 7


@pytest.mark.parametrize("nearby", [True, False])
def test_a_new_token_takes_over_in_mid_epoch(guarded: Guarded, monkeypatch: pytest.MonkeyPatch, nearby: bool) -> None:
    """The session that the old one has opened ends. The rest of the epoch comes from another one, also if the file of the
    token has just been looked at."""
    monkeypatch.setattr("atta.wire.credentials.LOOK_S", 60)
    if not nearby:
        monkeypatch.setattr("atta.client.cluster.machine_id", lambda: "another machine")
    file, later = guarded.authority.token_file, datetime.now(UTC) + timedelta(hours=1)
    (old, entry), (new, other) = (issue(name, {Role.READER}, later) for name in ("old", "new"))
    both = TokenFile.of([*read_tokens(file).entries.values(), entry, other])
    file.write_text(both.text())
    credentials = guarded.with_token(old)
    with atta.connect(guarded.cluster.addresses, credentials=credentials) as cluster:
        loader = atta.NeighborLoader(cluster, **{**LOADER, "batch_size": 4})
        whole = [digest(batch) for batch in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        found = [digest(next(batches))]
        Path(credentials.token).write_text(new)
        ended = guarded.logs().count("session ended")
        file.write_text(both.without(entry.id).text())
        assert eventually(lambda: guarded.logs().count("session ended") > ended)
        assert found + [digest(batch) for batch in batches] == whole


@pytest.mark.slow
def test_tokens_alone_will_do(small_graph: SmallGraph, tmp_path: Path, plain: atta.LocalCluster) -> None:
    """Daemons that ask for no certificate bring each other a token, and callers bring theirs."""
    authority = Authority.in_folder(tmp_path / "authority")
    own = authority.certificate("daemon", hosts=("127.0.0.1",))
    tokens = authority.tokens()
    for role in ("peer", "reader"):
        (tmp_path / role).write_text(tokens[role])
    options = ("--tls-ca", own.ca, "--tls-cert", own.cert, "--tls-key", own.key, "--tls-callers", "token")
    options += ("--tokens", str(authority.token_file), "--peer-token", str(tmp_path / "peer"), "--cache", "0")
    credentials = Credentials(own.ca, token=str(tmp_path / "reader"))
    data = small_graph.dataset(2, "metis")
    with atta.local(data, threads=1, options=options, credentials=credentials) as cluster:
        found, wanted = ([digest(b) for b in atta.NeighborLoader(c, **LOADER)] for c in (cluster, plain))
        assert found == wanted
        with pytest.raises(atta.NotAuthenticatedError, match="neither a certificate nor a token"):
            atta.connect(cluster.addresses, credentials=Credentials(own.ca))
