"""``atta dashboard``: a page that shows a cluster and the curves of training, also beside a daemon."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIServer

import click
import structlog

from atta.cli.cluster.page import MOST_CHARACTERS, TrainerHistory, View, figures_of, page
from atta.cli.cluster.trace import recorded
from atta.cli.options import command
from atta.cli.output import DURATION, cluster_option, quiet_option, say
from atta.client.watch import Watch
from atta.daemon.config import DaemonConfig
from atta.daemon.security import DaemonSecurity, check_reached_by_others, is_loopback
from atta.errors import AttaError, ConfigError, blaming
from atta.observe.answering import App, bounded_listener, run_aside
from atta.wire.clusterfile import check_address, listening_at
from atta.wire.tokens import METRICS

SCRAPE_S = 2.0
"""How long a trainer may take to answer."""


class Watching:
    """Samples once per ``interval_s`` on a thread of its own. A context manager. However many browsers look, daemons
    are asked once."""

    def __init__(
        self, target: str | Sequence[str], trainers: Sequence[str], interval_s: float, *, now: bool = True
    ) -> None:
        """``target``: also its name on the page. ``now``: look before this returns; else after the first interval."""
        self._name, self._interval_s = str(target), interval_s
        self._watch = Watch(target)
        self._trainers = [TrainerHistory(address) for address in trainers]
        self._end = threading.Event()
        self.view = self._seen() if now else View(self._name, [], self._trainers, max(1.0, interval_s))
        self._thread = threading.Thread(target=self._run, name="atta-dashboard", daemon=True)

    def _seen(self) -> View:
        return View(self._name, self._watch.look(), self._trainers, max(1.0, self._interval_s))

    def _run(self) -> None:
        while not self._end.wait(self._interval_s):
            began = time.monotonic()
            for trainer in self._trainers:
                _scrape(trainer)
            self.view = self._seen()
            # Slow daemons are not asked more often.
            self._end.wait(max(0.0, time.monotonic() - began - self._interval_s))

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10)
        self._watch.close()


def _scrape(trainer: TrainerHistory) -> None:
    try:
        with contextlib.closing(
            urllib.request.urlopen(f"http://{trainer.address}/metrics", timeout=SCRAPE_S)
        ) as answer:
            trainer.add(*figures_of(answer.read(MOST_CHARACTERS + 1).decode("utf-8", "replace")))
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        trainer.error = f"no metrics: {reason}"


HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""No script runs on the page, and nothing is loaded."""


def _answer(path: str, page: Callable[[], str], trace: Callable[[], str]) -> tuple[int, str, str]:
    try:
        if path == "/":
            return 200, "text/html", page()
        if path == "/trace":
            return 200, "application/json", trace()
    except AttaError as error:
        return 502, "text/plain", f"{error}\n"
    return 404, "text/plain", f"{path[:100]!r}: there are / and /trace\n"


def application(page: Callable[[], str], trace: Callable[[], str]) -> App:
    """The page and the trace for a server of WSGI."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO") or "/"
        if environ.get("REQUEST_METHOD") != "GET":
            status, kind, text = 501, "text/plain", "GET alone\n"
        else:
            status, kind, text = _answer(path, page, trace)
        body = text.encode()
        headers = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        start_response(f"{status} {HTTPStatus(status).phrase}", list(headers.items()))
        return [body]

    return answer


def server(
    host: str, port: int, page: Callable[[], str], trace: Callable[[], str], *, option: str = "--listen"
) -> WSGIServer:
    """A server that listens; the caller runs ``serve_forever``. Raises ConfigError, which names ``option``."""
    with blaming(ConfigError, f"{option} {host}:{port}: cannot listen there"):
        return bounded_listener(host, port, application(page, trace))


log = structlog.get_logger("atta.daemon")
OPTION = "--dashboard"
INTERVAL_S = 2.0
"""Between two looks at the daemons."""
TRACE = "atta.v1.ControlService/Trace"
"""Who may download a trace: whoever may ask a daemon for it."""


@contextlib.contextmanager
def daemon_page(config: DaemonConfig, address: str, cluster: str | None) -> Iterator[None]:
    """Serve the page at ``address`` within the block. It shows the daemons of the file ``cluster``; None: this one.

    With TLS the page comes over HTTPS, to those who bring a token that may read metrics. Raises ConfigError: the
    address is wrong, in use or reached by others without ``--insecure`` or TLS."""
    host, port = listening_at(OPTION, address)
    if cluster is None and config.listen.endswith(":0"):
        raise ConfigError(f"{OPTION}: name a port with --listen, or a cluster file with --peers")
    target = cluster or config.listen
    with Watching(target, (), INTERVAL_S, now=False) as watching, contextlib.ExitStack() as stack:
        show, trace = (lambda: page(watching.view)), (lambda: recorded(target)[0])
        if config.tls_cert:
            if not config.tokens:
                raise ConfigError(f"{OPTION} with TLS needs --tokens: whoever reads the page brings one")
            method = {"/trace": TRACE}.get
            ended = DaemonSecurity(config).serve_app(
                OPTION, host, port, application(show, trace), lambda path: method(path, METRICS)
            )
            stack.callback(ended)
        else:
            check_reached_by_others({OPTION: host}, insecure=config.insecure)
            stack.callback(run_aside(server(host, port, show, trace, option=OPTION), "atta-page"))
        log.info("dashboard", address=f"{host}:{port}")
        yield


@command()
@cluster_option
@click.option("--listen", default="127.0.0.1:8800", metavar="HOST:PORT", help="Where the page is.")
@click.option("--trainer", "trainers", multiple=True, metavar="HOST:PORT", help="Metrics of `atta train --metrics`.")
@click.option("--interval", type=DURATION.at_least("500ms"), default="2s", help="Between two looks.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine: the network is trusted.")
@quiet_option
def dashboard(
    target: str, listen: str, trainers: tuple[str, ...], interval: float, *, insecure: bool, quiet: bool
) -> None:
    """Serve a page that shows a cluster: daemons, sessions, launch scores, and curves of training. Ctrl-C ends it.

    The page needs no scripts and no network but its own. Whoever reaches it sees what `atta top` shows.

    Example: atta dashboard --cluster cluster.toml --trainer 127.0.0.1:9100"""

    host, _, port = check_address(listen).rpartition(":")
    for trainer in trainers:
        check_address(trainer)
    if not (is_loopback(host) or insecure):
        raise ConfigError(f"--listen {listen}: all who reach it could read the page; give --insecure to allow it")
    with Watching(target, trainers, interval) as watching:
        found = server(host, int(port), lambda: page(watching.view), lambda: recorded(target)[0])
        say(quiet, f"http://{host}:{found.server_address[1]}/ shows {target}; Ctrl-C ends it")
        end = run_aside(found, "atta-page")
        try:
            threading.Event().wait()  # the main thread only waits: Ctrl-C cannot come amid the start of a thread
        finally:
            end()


COMMANDS = [dashboard]
