"""``atta simulate``: compute what a cluster would do instead of running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from atta.cli import output
from atta.cli.options import STRATEGY, StrategyCommand, StrategyHelp, command, config_option, settings_options
from atta.cli.sizing import OPTIONS as SIZING
from atta.cli.sizing import check_sizing, run_sizing, sizing_options
from atta.errors import ConfigError, blaming, known_name
from atta.scheduler.config import SchedulerConfig, link_threads
from atta.scheduler.policies import POLICIES, policy_named
from atta.simulate.cluster import SimulatedRun, document, table
from atta.simulate.cluster import simulate as simulated
from atta.simulate.pipeline import PipelineScenario, planned_costs, simulate_pipeline
from atta.simulate.profile import Profile, load_profile, save_profile
from atta.simulate.scenario import Scenario

COUNT = click.IntRange(min=1)

_SWEPT = (
    "machines", "cores", "threads", "serve-threads", "link", "rtt", "policy", "prefetch", "requests", "queue",
    "neighbours", "peers", "window", "disk", "train-ms", "train-threads", "batch-size", "cache-hit", "batches", "seed",
)  # fmt: skip
"""Options that ``--sweep`` can vary."""
_PIPELINE = {"machines", "threads", "seed", "rtt_s", "epochs"}
"""Options that go with ``--strategy``."""
_LOADER, _DAEMON = ("aggregate", "dependency", "method"), ("cache_share", "cache_rank", "window", "memory")
"""What ``--measure`` hands to loaders, and to daemons that it starts."""
_MEASURING = {"out", "epochs", "split", "data", "batch_size", "fan_outs", "threads", *_LOADER, *_DAEMON}
"""Options that go with ``--measure``."""


_GROUPS = {
    "Cluster": "profile trace machines cores threads link rtt shared-cores serve-threads",
    "Sampling and training": "batch-size num-neighbors batches seed train-ms train-threads lockstep cache-hit share-pulls disk",
    "Sweeps, other simulations": "sweep strategy",
    "Scheduling": "policy prefetch requests queue neighbours peers",
    "Making a profile": "measure out epochs split data aggregate dependency method cache-share cache-rank window memory",
    "Sizing for a larger graph": "instances vertices edges sample within cache",
    "Output": "json quiet config help",
}


@command(
    cls=StrategyCommand,
    groups=_GROUPS,
    strategies={"dorylus": StrategyHelp("training with intervals and workers, simulated", PipelineScenario)},
)
@config_option
@click.option("--profile", "profile_file", metavar="FILE", help="What batches cost: made by --measure, or by hand.")
@click.option("--trace", "trace_file", metavar="FILE", help="The same from a file of `atta trace`.")
@settings_options(Scenario)
@click.option("--threads", type=COUNT, show_default="the cores", help="Worker threads of a daemon.")
@click.option(
    "--policy", metavar=f"[{'|'.join(POLICIES)}]", show_default=f"{SchedulerConfig.policy}", help="When to launch."
)
@click.option("--prefetch", type=COUNT, show_default="4", help="Depth of the policy `prefetch`.")
@click.option("--requests", type=COUNT, show_default="16", help="Requests to other daemons at once.")
@click.option("--queue", type=output.SIZE, show_default="1GiB", help="Most bytes of batches in flight or waiting.")
@click.option("--train-ms", type=click.FloatRange(min=0), default=0.0, help="Training on one batch.")
@click.option("--sweep", metavar="OPTION=A,B,...", help=f"Simulate for several values of one of: {', '.join(_SWEPT)}.")
@click.option("--measure", "source", metavar="DATASET|CLUSTER", help="Make a profile by a real run instead; see --out.")
@click.option("--out", type=output.TO_WRITE, metavar="FILE", help="With --measure: the profile to write.")
@click.option(
    "--epochs",
    type=COUNT,
    default=2,
    help="Epochs to measure with --measure, after a warm-up, or to simulate with --strategy.",
)
@click.option("--data", help="With --measure CLUSTER: the dataset that it serves, for shares at home hop by hop.")
@click.option("--aggregate", type=click.Choice(["mean", "sum", "gcn"]), help="With --measure: as loaders take it.")
@click.option("--dependency", type=COUNT, help="With --measure: as loaders take it.")
@click.option("--method", metavar="NAME", help="With --measure: as loaders take it.")
@click.option("--cache-share", type=click.FloatRange(0, 100), help="With --measure DATASET: as in `atta serve`.")
@click.option("--cache-rank", metavar="NAME", help="With --measure DATASET and --cache-share: as in `atta serve`.")
@click.option("--memory", metavar="SIZE", help="With --measure DATASET: as in `atta serve`; rows come from the disk.")
@click.option("--split", default="train", help="With --measure: the split whose vertices are the seeds.")
@click.option(
    "--strategy",
    type=STRATEGY,
    metavar="dorylus[:SETTING=VALUE,...]",
    help="Training, not sampling; `atta simulate --strategy dorylus --help` lists its settings.",
)
@sizing_options
@output.json_option
@output.quiet_option
def simulate(
    profile_file: str | None,
    trace_file: str | None,
    source: str | None,
    out: str | None,
    json_file: str | None,
    *,
    quiet: bool,
    settings: dict[str, Any],
    **options: Any,
) -> None:
    """Compute what a cluster of any size would do, with the scheduler that daemons run.

    \b
    Example: atta simulate --measure data/pl-2p --out profile.json
             atta simulate --profile profile.json --machines 8 --sweep cores=1,2,4
             atta simulate --strategy dorylus:workers=100,kill=0.1 --machines 4
    """
    options |= settings
    if (strategy := options.pop("strategy")) is not None:
        output.refuse_given({"profile_file", "trace_file", "source"}, "--strategy needs no profile")
        output.refuse_given({"out", *options} - _PIPELINE, "does not go with --strategy")
        given = {name: options[name] for name in _PIPELINE if options[name] is not None}
        del strategy["strategy"]
        if plan := strategy.get("plan"):
            given = planned_costs(plan, strategy.get("intervals", PipelineScenario.intervals)) | given
        run_pipeline(PipelineScenario(**given | strategy), json_file, quiet=quiet)
        return
    if source is not None:
        if out is None or profile_file is not None or trace_file is not None:
            raise click.UsageError("--measure makes a profile: name it with --out, and leave out --profile and --trace")
        output.refuse_given({"json_file", *options} - _MEASURING, "does not go with --measure")
        idle, kind = ({"data"}, "CLUSTER") if Path(source).is_dir() else ({"threads", *_DAEMON}, "DATASET")
        output.refuse_given(idle, f"goes with --measure {kind}")
        if options["cache_share"] is None:
            output.refuse_given({"cache_rank", *([] if options["memory"] else ["window"])}, "needs --cache-share")
        _measure(source, out, options, quiet=quiet)
        return
    output.refuse_given(
        {"out", "split", "data", *_LOADER, "cache_share", "cache_rank", "memory"}, "goes with --measure"
    )
    output.refuse_given({"epochs"}, "goes with --measure and --strategy")
    check_sizing(options["instances"])
    profile = _profile(profile_file, trace_file, options)
    option, swept, values = _sweep(options.pop("sweep"))
    output.refuse_given({swept}, f"--sweep {option} varies it")
    policies = [value for _, value in values] if swept == "policy" else [options["policy"]]
    if not any(policy_named(policy or SchedulerConfig.policy).has_depth for policy in policies):
        output.refuse_given({"sweep"} if swept == "prefetch" else {"prefetch"}, "the depth goes with --policy prefetch")
    if (instances := options["instances"]) is not None:
        base, given = _scenario(profile, options), {name: options[name] for name in SIZING}
        run_sizing(base, instances, given, json_file, quiet=quiet)
        return
    scenarios = {label: _scenario(profile, {**options, swept: value} if option else options) for label, value in values}
    _run(scenarios, option, Path(profile_file or trace_file or "").name, json_file, quiet=quiet)


def _profile(profile_file: str | None, trace_file: str | None, options: Mapping[str, Any]) -> Profile:
    if (profile_file is None) == (trace_file is None):
        raise click.UsageError(
            "--profile FILE (made by --measure DATASET --out FILE) or --trace FILE says what batches cost"
        )
    from atta.simulate.traced import profile_of_trace

    if profile_file is not None:
        return load_profile(profile_file)
    assert trace_file is not None
    return profile_of_trace(trace_file, batch_size=options["batch_size"], fan_outs=options["fan_outs"])


def _run(scenarios: Mapping[str, Scenario], option: str, source: str, json_file: str | None, *, quiet: bool) -> None:
    """Simulate the scenarios of a sweep, or the only one, and show their figures."""
    runs = [SimulatedRun(label, scenario, simulated(scenario)) for label, scenario in scenarios.items()]
    if not quiet:
        for scenario in {run.scenario.epoch_batches: run.scenario for run in runs}.values():
            _warn_of_length(scenario)
        for unknown in dict.fromkeys(run.scenario.unknown for run in runs if run.scenario.unknown):
            output.echo(f"atta: warning: {unknown}", err=True)
    output.write_json(json_file, document(runs, option, source))
    if not quiet and json_file != "-":
        output.printer().print(table(runs, option))


def _warn_of_length(scenario: Scenario) -> None:
    """Warn if a scenario is longer than an epoch: a loader would end there and start again."""
    most, seeds = scenario.epoch_batches, scenario.epoch_seeds
    if most is not None and scenario.batches > most:
        output.echo(
            f"atta: warning: --batches {scenario.batches}: an epoch of {seeds:,} seeds has only {most} batches of "
            f"{scenario.seeds} on each of {scenario.machines} machines; beyond, more of the same are simulated",
            err=True,
        )


def _sweep(text: str | None) -> tuple[str, str, list[tuple[str, Any]]]:
    """The option that varies, its field ("" for none), and its values, as text and as read."""
    if text is None:
        return "", "", [("", None)]
    option, equals, listed = text.partition("=")
    option = option.strip().removeprefix("--").replace("_", "-")
    if not equals or not listed:
        raise ConfigError(f"--sweep {text}: write it like cores=1,2,4")
    known_name("option to sweep", option, _SWEPT)
    (param,) = (p for p in click.get_current_context().command.params if f"--{option}" in p.opts)
    with blaming(ConfigError, f"--sweep {text}", of=click.BadParameter):
        values = [(entry, param.type.convert(entry, None, None)) for entry in output.NAMES.convert(listed, None, None)]
    return option, str(param.name), values


_SCHEDULING = {"policy": "policy", "prefetch": "prefetch", "net_in_flight": "requests", "queue_bytes": "queue"}
"""Fields of ``SchedulerConfig`` and the options that say them."""


def _scenario(profile: Profile, options: Mapping[str, Any]) -> Scenario:
    known = {field.name: options.get(field.name) for field in fields(Scenario) if field.name != "epochs"}
    given = {"machines": profile.parts, "cores": profile.cores, **{k: v for k, v in known.items() if v is not None}}
    threads = options["threads"] or given["cores"]
    scheduling = {field: options[name] for field, name in _SCHEDULING.items() if options[name] is not None}
    given.setdefault("serve_threads", link_threads(threads))
    scheduler = SchedulerConfig(workers=threads, log_events=0, **scheduling)
    return Scenario(profile, scheduler=scheduler, train_s=1e-3 * options["train_ms"], **given)


def _measure(source: str, out: str, options: Mapping[str, Any], *, quiet: bool) -> None:
    from atta.simulate.measure import measure

    profile = measure(
        source,
        data=options["data"],
        batch_size=options["batch_size"] or 1024,
        fan_outs=options["fan_outs"] or (15, 10, 5),
        split=options["split"],
        epochs=options["epochs"],
        threads=options["threads"] or 1,
        loader={name: options[name] for name in _LOADER if options[name] is not None},
        daemon=[
            word
            for name in _DAEMON
            if options[name] is not None
            for word in (f"--{name.replace('_', '-')}", str(options[name]))
        ],
        say=output.teller(quiet),
    )
    save_profile(out, profile)


COMMANDS = [simulate]


def run_pipeline(scenario: PipelineScenario, json_file: str | None, *, quiet: bool) -> None:
    """Simulate a pipeline, and show what it did."""
    outcome = simulate_pipeline(scenario)
    plain = asdict(scenario) | {"link": None if scenario.link == float("inf") else scenario.link}
    output.write_json(json_file, {"schema": 1, "scenario": plain, "outcome": asdict(outcome)})
    if not quiet and json_file != "-":
        later = outcome.epoch_s[1:] or outcome.epoch_s
        output.printer().print(
            f"{scenario.mode}: {sum(later) / len(later):.4g} s per epoch after the first ({outcome.epoch_s[0]:.4g} s); "
            f"rows at most {outcome.oldest} epochs old"
        )
        output.printer().print(
            f"{outcome.workers} workers, {100 * outcome.working:.0f} % of their time at work; "
            f"trainers busy {100 * outcome.busy:.0f} %; "
            f"{outcome.relaunched} tasks relaunched, {outcome.lost} workers lost, {outcome.ignored} results ignored"
        )
