"""The page in the process of a daemon: ``atta serve --dashboard``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog

from atta.cli.cluster.dashboard.page import page
from atta.cli.cluster.dashboard.serving import application, server
from atta.cli.cluster.dashboard.watching import Watching
from atta.cli.cluster.trace import recorded
from atta.daemon.config import DaemonConfig
from atta.daemon.security.security import DaemonSecurity, check_reached_by_others
from atta.errors import ConfigError
from atta.observe.answering import run_aside
from atta.wire.clusterfile import listening_at
from atta.wire.security.roles import METRICS

log = structlog.get_logger("atta.daemon")
OPTION = "--dashboard"
INTERVAL_S = 2.0
"""Between two looks at the daemons."""
TRACE = "atta.v1.ControlService/Trace"
"""Who may download a trace: whoever may ask a daemon for it."""


@contextlib.contextmanager
def daemon_page(config: DaemonConfig, address: str, cluster: str | None) -> Iterator[None]:
    """Serve the page at ``address`` within the block. It shows the daemons of the file ``cluster``; None: this one.

    With TLS the page comes over HTTPS, to those who bring a token that may read metrics.

    Raises:
        ConfigError: the address is wrong, in use or reached by others without ``--insecure`` or TLS.
    """
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
