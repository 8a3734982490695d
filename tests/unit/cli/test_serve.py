"""The options of ``atta serve`` are the fields of ``DaemonConfig``: names, defaults and bounds, also in TOML."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from atta.cli.cluster.serve import serve
from atta.daemon.config import DaemonConfig
from atta.daemon.services.front import is_free
from atta.errors import ConfigError, UnknownNameError
from atta.observe.machine.processor import usable_cores
from atta.observe.settings import NoOption, Option, settings_of
from atta.scheduler.config import SchedulerConfig

OPTIONS = {
    "data": "data", "data-cache": "data_cache", "part": "parts", "listen": "listen",
    "threads": "threads", "requests": "requests", "memory": "memory",
    "buffer": "buffer_bytes", "queue": "queue_bytes", "cache": "cache_bytes", "cache-edges": "cache_edges",
    "cache-share": "cache_share", "cache-rank": "cache_rank", "window": "window", "cache-fanouts": "cache_fanouts",
    "cache-fill": "cache_fill",
    "share-pulls": "share_pulls", "links": "links", "link-port": "link_port", "tables": "table_bytes",
    "snapshots": "snapshots", "snapshots-size": "snapshot_bytes", "durability": "durability", "backup": "backup",
    "keep-backup": "keep_backup", "promote-after": "promote_after_s", "tables-dir": "tables_dir", "log-size": "log_bytes",
    "lease": "lease_s", "peer-deadline": "peer_deadline_s", "peer-delay": "peer_delay_s",
    "max-sessions": "max_sessions", "max-seeds": "max_seeds", "max-connections": "max_connections",
    "max-calls": "max_calls", "request-memory": "request_bytes", "answer-memory": "answer_bytes",
    "drain": "drain_s", "policy": "policy", "prefetch": "prefetch",
    "model": "model", "table": "table", "what": "what", "fan-out": "fan_out", "query-wait": "query_wait_s",
    "trace-events": "trace_events", "metrics": "metrics", "metrics-port": "metrics_port",
    "tls-cert": "tls_cert", "tls-key": "tls_key", "tls-ca": "tls_ca", "tls-callers": "tls_callers", "tokens": "tokens",
    "peer-token": "peer_token", "insecure": "insecure", "verify": "verify",
    "exit-with-parent": "exit_with_parent",
}  # fmt: skip
"""Names on the command line, which scripts use, and the fields that they set."""
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run ``atta serve`` with ``words`` and return the configuration that the daemon would have."""
    served: list[DaemonConfig] = []
    monkeypatch.setattr("atta.daemon.daemon.serve", lambda config, *_: served.append(config))
    monkeypatch.setattr("atta.observe.logs.configure", lambda **_: None)
    monkeypatch.setattr("atta.cli.cluster.serve._check_stdin", lambda: None)  # pytest's own is a device

    def run(
        *words: str, toml: str | None = None, place: tuple[str, ...] = ("--data", "d", "--part", "0")
    ) -> DaemonConfig:
        if toml is not None:
            file = tmp_path / "daemon.toml"
            file.write_text(toml)
            words = ("--config", str(file), *words)
        CliRunner().invoke(serve, [*place, *words], catch_exceptions=False, standalone_mode=False)
        return served[-1]

    return run


def test_every_field_has_an_option_or_a_reason() -> None:
    settings = {s.field: s for s in settings_of(DaemonConfig)}
    assert list(settings) == [field.name for field in dataclasses.fields(DaemonConfig)]
    offered = {s.name: field for field, s in settings.items() if isinstance(s.option, Option)}
    assert offered == OPTIONS
    reasons = {field: s.option.reason for field, s in settings.items() if isinstance(s.option, NoOption)}
    assert set(reasons) == {"peers", "peers_file", "max_batch_size"}
    assert all(reasons.values())
    assert set(OPTIONS) <= {option.opts[0].removeprefix("--") for option in serve.params}


def test_defaults_stand_in_the_dataclass(run: Any) -> None:
    assert run() == DaemonConfig("d", range(1))
    config = DaemonConfig("d", range(1))
    assert (config.listen, config.threads) == ("127.0.0.1:7070", usable_cores())
    assert (config.cache_bytes, config.table_bytes) == (None, 4 * GIB)
    assert (config.lease_s, config.peer_deadline_s, config.peer_delay_s, config.drain_s) == (60, 60, 0, 10)
    scheduler = SchedulerConfig()
    assert (config.policy, config.prefetch, config.requests) == (scheduler.policy, scheduler.prefetch, 16)


@pytest.mark.parametrize(
    ("listen", "named", "warns"),
    [
        ("127.0.0.1:7071", "127.0.0.1:7070", True),
        ("127.0.0.2:7070", "127.0.0.1:7070", True),
        ("127.0.0.1:7070", "127.0.0.1:7070", False),
        ("[::1]:7070", "[0:0::1]:7070", False),
        ("127.0.0.1:7070", "node-1:7070", False),
        ("0.0.0.0:7070", "10.0.0.1:7070", False),
    ],
)
def test_a_cluster_file_that_names_another_address(
    listen: str, named: str, warns: bool, run: Any, tmp_path: Path
) -> None:
    (file := tmp_path / "cluster.toml").write_text(f'[[daemon]]\npart = 0\naddress = "{named}"\n')
    with capture_logs() as lines:
        run("--listen", listen, "--peers", str(file))
    said = [(line["event"], line["listen"], line["named"]) for line in lines]
    assert said == [("others look for this daemon elsewhere", listen, named)] * warns


def test_memory_for_batches_grows_with_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many workers needs a batch, as far as the machine has memory."""
    cases = (2, 24, 4, 1), (15, 128, 30, 7.5), (15, 64, 16, 7.5), (15, 16, 4, 2), (64, 4, 4, 1)
    for threads, memory, buffer, queue in cases:
        monkeypatch.setattr("atta.daemon.config.total_bytes", lambda memory=memory: memory * GIB)
        config = DaemonConfig("d", range(1), threads=threads)
        assert (config.most_buffer_bytes, config.most_queue_bytes) == (buffer * GIB, queue * GIB)
    given = DaemonConfig("d", range(1), threads=15, buffer_bytes=GIB, queue_bytes=MIB)
    assert (given.most_buffer_bytes, given.most_queue_bytes) == (GIB, MIB)


WORDS = (
    "--threads", "3", "--buffer", "64MiB", "--queue", "2MiB", "--cache", "0", "--cache-share", "12.5", "--cache-rank", "access",
    "--cache-fanouts", "4,3", "--no-cache-edges",
    "--no-share-pulls", "--lease", "500ms", "--peer-delay", "2ms", "--policy", "fifo", "--no-verify",
    "--metrics-port", "9090", "--exit-with-parent",
)  # fmt: skip
WANTED = DaemonConfig(
    "d", range(1), threads=3, buffer_bytes=64 * MIB, queue_bytes=2 * MIB, cache_bytes=0, cache_share=0.125, cache_rank="access",
    cache_fanouts=(4, 3), cache_edges=False,
    share_pulls=False, lease_s=0.5, peer_delay_s=0.002, policy="fifo", verify=False, metrics_port=9090,
    exit_with_parent=True,
)  # fmt: skip


def test_words_and_a_file_fill_fields(run: Any, tmp_path: Path) -> None:
    assert run(*WORDS) == WANTED
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('[[daemon]]\npart = 0\naddress = "10.0.0.1:7070"\n')
    file = f'data = "d"\npart = 0\npeers = "{cluster}"\nlog-level = "debug"'
    assert run(toml=file, place=()) == DaemonConfig("d", range(1), peers={0: "10.0.0.1:7070"}, peers_file=str(cluster))
    with pytest.raises(UnknownNameError, match=r"daemon\.toml 'max-batch-size'"):
        run(toml="max-batch-size = 3")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threads": 0}, "--threads 0: must be at least 1"),
        ({"threads": 2000}, "at most 1024"),
        ({"buffer_bytes": 1}, "--buffer 1: must be at least"),
        ({"lease_s": 0.1}, "--lease 0.1"),
        ({"policy": "fif"}, "policy 'fif'; did you mean 'fifo'"),
        ({"cache_share": 2.0}, "--cache-share"),
    ],
)
def test_python_refuses_what_the_command_line_refuses(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DaemonConfig("d", range(1), **settings)


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (subprocess.DEVNULL, "--exit-with-parent: standard input must be a pipe that the parent holds"),
        (subprocess.PIPE, "absent"),
    ],
)
def test_a_daemon_that_cannot_see_its_parent_end_is_not_begun(stdin: int, words: str, tmp_path: Path) -> None:
    command = ["serve", "--data", str(tmp_path / "absent"), "--part", "0", "--exit-with-parent"]
    with subprocess.Popen(
        [sys.executable, "-m", "atta.cli.main", *command], stdin=stdin, stderr=subprocess.PIPE, text=True
    ) as process:
        said = process.stderr.read()
        assert process.wait(timeout=60) == 2
    (line,) = [line for line in said.splitlines() if line.startswith("atta: error: ")]
    assert words in line


def test_an_address_is_free_until_somebody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert not is_free(f"127.0.0.1:{taken.getsockname()[1]}")
    assert is_free("127.0.0.1:0")
    assert is_free("no-such-host.invalid:1"), "what is wrong there is said by who binds it"


@pytest.mark.parametrize("option", ["--listen", "--metrics", "--dashboard"])
def test_a_port_that_another_program_has_is_told_of_with_its_option(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atta.observe.logs.configure", lambda **_: None)  # it is for a whole process
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["--data", "absent", "--part", "0", "--listen", "127.0.0.1:0", option, address]
        done = CliRunner().invoke(serve, words)
    said = f"cannot listen on {address}: the address is in use by another program"
    assert str(done.exception).startswith(said)
    assert str(done.exception).endswith(f", or name another port with {option}")
