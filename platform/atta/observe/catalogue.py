"""Describes each of a daemon's figures: its name in Prometheus, whether it only grows, and a sentence for people.
Daemons keep flat figures (``ControlService.Stats``). Some have labels in their name, such as
``tasks_join_cpu_total``."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. ``name`` comes without the prefix ``atta_`` and, for counters, without ``_total``."""

    name: str
    help: str
    counter: bool = False
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """The name under which Prometheus finds the values."""
        return f"atta_{self.name}" + ("_total" if self.counter else "")


def _counters(**helps: str) -> dict[str, Family]:
    return {key: Family(key.removesuffix("_total"), text, counter=True) for key, text in helps.items()}


def _gauges(**helps: str) -> dict[str, Family]:
    return {key: Family(key, text) for key, text in helps.items()}


FIGURES: dict[str, Family] = {
    **_counters(
        batches="Mini-batches finished.",
        nodes="Vertices in finished mini-batches.",
        edges="Edges in finished mini-batches.",
        remote_rows="Feature rows of other partitions in finished mini-batches that were pulled from their daemons.",
        cached_rows="Feature rows of other partitions in finished mini-batches that were in the cache.",
        shared_rows="Feature rows of other partitions in finished mini-batches that an earlier batch was waiting for already.",
        summed_rows="Feature rows of other partitions in finished mini-batches that their daemons sent in sums.",
        remote_bytes="Bytes that other daemons sent for finished mini-batches.",
        cache_rows_asked="Feature rows of other partitions looked up in the cache.",
        cache_rows_hit="Feature rows of other partitions found in the cache.",
        edge_cache_rows_asked="Vertices of other partitions to be expanded that were looked up in the cache of in-edges.",
        edge_cache_rows_hit="Vertices of other partitions whose in-edges were found in the cache.",
        edge_cache_refused="Pieces of in-edges that were not kept, because they differed from what their owner has.",
        scheduler_launched_total="Sampling DAGs launched.",
        scheduler_finished_total="Sampling DAGs finished.",
        scheduler_cancelled_total="Sampling DAGs cancelled because their session ended.",
        disk_reads="Reads from the disk, with --memory SIZE; each brings one row, or several that lie together.",
        disk_read_bytes="Bytes of such reads, in whole blocks.",
        disk_wait_seconds="Time that threads waited for them, summed over threads, in seconds.",
        disk_rows_asked="Rows on the disk that were asked for, and blocks of in-edges there.",
        disk_rows_hit="Of these, how many were in memory.",
        filled_bytes="Bytes that other daemons sent to fill the cache in the background.",
        fill_failures="Pieces of the cache that other daemons could not send; they are asked for again.",
        task_errors="Tasks that failed; each fails its session.",
        launch_errors="Mini-batches that found no buffers to start with; each fails its session.",
        hedged_total="Requests to other daemons that were sent twice because the answer was late.",
        hedges_won_total="Requests sent twice whose second copy was answered first.",
        replica_changes_total="How often another replica of an owner was taken because the one before was lost.",
        sessions_opened="Sessions opened.",
        sessions_expired="Sessions whose lease ran out.",
        requests_nearby="Requests for batches by consumers on this machine, which do not come over gRPC.",
        slots_created="Batch buffers made; in a steady state they are reused.",
        table_rows_pulled="Rows of mutable tables read.",
        table_rows_lent="Those of them that were written into memory of clients on the same machine.",
        table_rows_pushed="Rows of mutable tables written.",
        table_rows_pushed_lent="Those of them whose values lay in memory of clients on the same machine.",
        table_log_records="Changes of mutable tables written to the log.",
        table_log_groups="Groups of such changes, each written at once.",
        backup_records="Changes of another daemon's mutable tables written to the copy here.",
        queries_answered="Point queries answered.",
        queries_refused="Point queries that failed, or were refused; callers that went away do not count.",
        query_vertices="Vertices of answered point queries.",
        query_computations="Computations for point queries; callers of a moment share one.",
        query_seconds="Time from the arrival of point queries to their answers, summed up, in seconds.",
        weights_gradients="Gradients that have changed the weights of jobs.",
        weights_repeated="Gradients that had come before.",
        log_lines_dropped="Log lines left out because standard error took no more.",
        machine_busy_seconds="Processor time of the machine that was not idle, all cores, in seconds.",
    ),
    **_gauges(
        uptime_seconds="Seconds since the daemon started.",
        process_resident_bytes="Resident memory of the daemon, including mapped files.",
        certificate_days_left="Days until the daemon's own certificate ends; negative: it has ended.",
        machine_cores="Processor cores of the machine.",
        sessions="Open sessions.",
        sessions_lingering="Closed sessions whose consumers still read batches.",
        consumers_nearby="Connections of consumers on this machine, beside those of gRPC.",
        dags_in_flight="Sampling DAGs launched and not finished.",
        buffer_bytes="Memory that batch buffers occupy.",
        buffer_limit_bytes="Memory that batch buffers may occupy (--buffer).",
        window="Batches sampled ahead of fetching (--window); 0: none.",
        parts="Partitions that the daemon serves.",
        queue_limit_bytes="Bytes of batches in flight or waiting that each session may hold (--queue).",
        request_bytes="Memory of requests under way; one that still arrives counts as the largest possible.",
        answer_bytes="Memory of streamed answers that wait for their readers.",
        table_lent_bytes="Bytes of clients' memory in which rows of mutable tables are answered, or lie to be read.",
        lent_bytes="Bytes of batches that consumers have taken and still read.",
        cache_bytes="Memory of cached feature rows of other partitions.",
        disk_cache_bytes="Memory of rows and in-edges of this partition that stay, with --memory SIZE.",
        edge_cache_bytes="Memory of cached in-edges of other partitions' vertices.",
        edge_cache_rows="Vertices of other partitions whose in-edges are cached.",
        fill_pieces_left="Pieces of the cache that are not filled in yet.",
        caches_filled="1 once all rows and in-edges have come that are fetched before batches ask for them.",
        scheduler_sessions="Sessions that the scheduler makes batches for.",
        scheduler_in_flight="Sampling DAGs launched and not finished, of all sessions.",
        scheduler_utilisation="CPU utilisation as the launch score sees it, in percent; measured while sessions are open.",
        tables_version="Version of the dataset's tables that sessions open; 0: the dataset itself.",
        tables_versions_read="Versions of the dataset's tables that open sessions read.",
        tables_version_bytes="Memory of rows of later versions of the dataset's tables.",
        tables="Mutable tables.",
        table_bytes="Memory of mutable tables.",
        table_log_bytes="Size of the log of mutable tables on the disk.",
        backup_lag="Changes of mutable tables that the backup is not known to have.",
        backup_away="1 while the backup of mutable tables does not answer, and pushes wait.",
        weights="Jobs without barriers whose weights are here.",
        weights_bytes="Most memory that the weights of jobs may take.",
        queries_waiting="Point queries that wait for a computation to begin.",
        table_clients="Clients registered to push, counted once for every mutable table.",
    ),
    "cpu_s": Family("process_cpu_seconds", "Processor time of the daemon, all threads, in seconds.", counter=True),
    "loop_cpu_s": Family(
        "event_loop_cpu_seconds", "Processor time of the event loop without tasks, in seconds.", counter=True
    ),
    "scheduler_finished": Family("scheduler_queued", "Batches finished and not taken, of all sessions."),
    "scheduler_finished_bytes": Family("scheduler_queued_bytes", "Bytes of batches finished and not taken."),
    "scheduler_finished_bytes_peak": Family("scheduler_queued_bytes_peak", "Most bytes of finished batches so far."),
}
"""By the name of the figure."""

_LABELLED: tuple[tuple[re.Pattern[str], Family], ...] = (
    (
        re.compile(r"tasks_([a-z]+)_([a-z]+)_total"),
        Family("tasks", "Tasks of sampling DAGs started.", counter=True, labels=("kind", "lane")),
    ),
    (
        re.compile(r"cost_([a-z]+)_([a-z]+)_([a-z]+)"),
        Family(
            "task_cost_sum",
            "Over tasks done: n, their number; x, expected cost; y, CPU seconds (lane cpu) or bytes (net); "
            "xx, xy, products; r, requests.",
            counter=True,
            labels=("kind", "lane", "sum"),
        ),
    ),
    (
        re.compile(r"scheduler_ready_([a-z]+)"),
        Family("scheduler_ready_tasks", "Tasks that wait for a place in their lane.", labels=("lane",)),
    ),
    (
        re.compile(r"scheduler_running_([a-z]+)"),
        Family("scheduler_running_tasks", "Tasks that run now.", labels=("lane",)),
    ),
    (
        re.compile(r"requests_(\w+)\.(\w+)"),
        Family("requests", "Requests received.", counter=True, labels=("service", "method")),
    ),
    (
        re.compile(r"request_errors_(\w+)\.(\w+)"),
        Family("request_errors", "Requests refused or failed.", counter=True, labels=("service", "method")),
    ),
    (
        re.compile(r"peer_received_bytes_(\d+)"),
        Family(
            "peer_received_bytes",
            "Bytes that came over links from a peer, by the first partition that it serves.",
            counter=True,
            labels=("peer",),
        ),
    ),
    (
        re.compile(r"query_seconds_le_(.+)"),
        Family("query_seconds_bucket", "Point queries that were answered within `le` seconds.", labels=("le",)),
    ),
    (
        re.compile(r"sent_bytes_(\w+)\.(\w+)"),
        Family("sent_bytes", "Bytes of bulk data answered.", counter=True, labels=("service", "method")),
    ),
)

SESSION_FIGURES: dict[str, Family] = {
    "batches": Family("session_batches", "Number of batches of the session."),
    "taken": Family("session_batches_taken", "Batches that the consumer has taken.", counter=True),
    "seeds": Family("session_seeds_taken", "Seeds of the batches that the consumer has taken.", counter=True),
    "queued": Family("session_queued", "Batches finished and not taken."),
    "in_flight": Family("session_in_flight", "Batches launched and not finished."),
    "queued_bytes": Family("session_queued_bytes", "Bytes of batches finished and not taken."),
    "lent_bytes": Family("session_lent_bytes", "Bytes of batches that the consumer has taken and still reads."),
    "score": Family("session_launch_score", "Launch score; the next batch is launched when it reaches sigma."),
    "sigma": Family("session_launch_sigma", "Launch score at which the next batch is launched."),
    "sample_ms": Family("session_sample_milliseconds", "Launch to end of a batch, running mean."),
    "train_ms": Family("session_train_milliseconds", "The consumer's time per batch, running mean."),
}
"""Fields of ``SessionFigures`` that are exported."""

JOB_FIGURES: dict[str, Family] = {
    "epoch": Family("job_epoch", "The epoch that the other figures of the job are of, from 0."),
    "sent_bytes": Family("job_sent_bytes", "Bytes of rows or gradients that trainers sent each other in an epoch."),
    "crossed_bytes": Family("job_crossed_bytes", "The bytes of these that went to other servers."),
    "rows": Family("job_rows_read", "Rows or gradients of other trainers that were read in an epoch."),
    "age_min": Family("job_age_min_epochs", "Least age of the rows that were read."),
    "age_mean": Family("job_age_mean_epochs", "Mean age of the rows that were read."),
    "age_max": Family("job_age_max_epochs", "Greatest age of the rows that were read."),
    "broadcasts": Family("job_broadcasts", "How often trainers sent their rows in an epoch."),
    "skipped": Family(
        "job_broadcasts_skipped", "How often trainers kept their rows back, which were still good enough."
    ),
    "predicted_error": Family("job_predicted_error", "Distance of predicted rows to those that were pulled last."),
    "stale_error": Family("job_stale_error", "Distance of the rows before to those that were pulled last."),
}
"""Fields of ``JobFigures`` that are exported. All are of the latest epoch."""


@dataclass(frozen=True, slots=True)
class Series:
    """One figure as Prometheus sees it: its metric, and the values of the metric's labels."""

    family: Family
    labels: tuple[str, ...] = ()


def family_of(figure: str) -> Series:
    """The series of a figure. A figure that is not in ``FIGURES`` is a gauge."""
    if figure in FIGURES:
        return Series(FIGURES[figure])
    for pattern, family in _LABELLED:
        if found := pattern.fullmatch(figure):
            return Series(family, found.groups())
    return Series(Family(re.sub(r"\W", "_", figure), f"Figure {figure} of the daemon."))
