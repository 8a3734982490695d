"""The types of a graph that a model learns about and reads: ``--target``, ``--edge-type`` and what layers depend on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from atta.client.loaders.link import reverse_type_of
from atta.errors import ConfigError
from atta.partition.names import reverse_relation, split_edge_type
from atta.partition.schema import Schema
from atta.train.settings.common import MODELS, TYPED_MODELS, TrainSettings
from atta.train.settings.minibatch import MinibatchSettings, parse_fan_outs

EdgeTriple = tuple[str, str, str]


CURE = "atta import --reverse adds edges that do"


@dataclass(frozen=True)
class TypeReach:
    """The types that ``depth`` layers over the vertices of ``target`` depend on. Layer 0 is the first one.

    Models have no weights for other types: no gradient would ever reach them.

    Attributes:
        target: node type of the seeds.
        depth: number of layers, and of hops.
        edge_types: of the graph, (source, relation, destination), sorted.
        widths: for each node type of the graph the number of its features; None: its rows are learnt.
        also: other node types of seeds.
    """

    target: str
    depth: int
    edge_types: tuple[EdgeTriple, ...]
    widths: Mapping[str, int | None]
    also: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, schema: Schema, target: str, depth: int, also: tuple[str, ...] = (), *, embed: Collection[str] = ()
    ) -> TypeReach:
        """The types of a dataset; ``embed``: those whose rows are learnt although they may have features. Raises
        ConfigError: no edge ends at the target, or features of a type that is read are not one row per vertex."""
        tables = {t: schema.node_tables[t].get("x") for t in schema.node_types}
        read = {t: None if t in embed else spec for t, spec in tables.items()}
        widths = {t: None if spec is None else spec.row_shape[0] if spec.row_shape else 1 for t, spec in read.items()}
        found = cls(target, depth, tuple(split_edge_type(e) for e in schema.edge_types), widths, also)
        if not found.edges(depth - 1):
            cure = CURE if any(source == target for source, _, _ in found.edge_types) else "nor does one begin at it"
            raise ConfigError(f"--target {target}: no edge type ends at it, so a model would see no neighbours; {cure}")
        for node_type in found.read(0):
            spec = read[node_type]
            if spec is not None and len(spec.row_shape) != 1:
                raise ConfigError(
                    f"training needs one row of features per vertex, x of {node_type} has rows of shape {spec.row_shape}"
                )
        return found

    def read(self, layer: int) -> tuple[str, ...]:
        """Node types whose rows a layer reads, sorted."""
        return self._within[self.depth - layer]

    def computed(self, layer: int) -> tuple[str, ...]:
        """Node types whose rows a layer computes, sorted."""
        return self._within[self.depth - layer - 1]

    def edges(self, layer: int) -> tuple[EdgeTriple, ...]:
        """Edge types along which a layer reads."""
        computed = self.computed(layer)
        return tuple(e for e in self.edge_types if e[2] in computed)

    @property
    def learnt(self) -> tuple[str, ...]:
        """Node types that are read and learn their rows."""
        return tuple(t for t in self.read(0) if self.widths[t] is None)

    @cached_property
    def _within(self) -> tuple[tuple[str, ...], ...]:
        """By number of hops: the node types that are at most so far from the seeds."""
        found: list[tuple[str, ...]] = [tuple(sorted({self.target, *self.also}))]
        for _ in range(self.depth):
            near = set(found[-1])
            found.append(tuple(sorted(near | {e[0] for e in self.edge_types if e[2] in near})))
        return tuple(found)


def usual_model(schema: Schema) -> str:
    """The model of a graph if none is named."""
    return (TYPED_MODELS if _has_types(schema) else MODELS)[0]


def _has_types(schema: Schema) -> bool:
    return len(schema.node_types) > 1 or len(schema.edge_types) > 1


def embedded_types(schema: Schema, settings: TrainSettings) -> tuple[str, ...]:
    """Node types that ``--embed`` names. Raises UnknownNameError: the graph has no such type."""
    given = getattr(settings, "embed", None)
    if given in (None, "all"):
        return schema.node_types if given else ()
    return tuple(schema.check_node_type(name.strip()) for name in given.split(","))


def rows_advice(schema: Schema, settings: TrainSettings) -> str:
    """What helps a model that tells nothing apart."""
    able = [
        t for t, tables in schema.node_tables.items() if "x" in tables and t not in embedded_types(schema, settings)
    ]
    if not able:
        return "take more epochs, or another --lr"
    graph = "" if settings.model in TYPED_MODELS else ", on a graph by atta import --reverse"
    kept = "" if settings.checkpoint is None else " (with --overwrite)"
    return f"features may tell too little: --embed {','.join(able)}{kept} learns a row per vertex instead{graph}"


def check_model(schema: Schema, settings: TrainSettings) -> None:
    """Refuse models of typed graphs on others, and the other way round. Raises ConfigError."""
    several = _has_types(schema)
    if several and settings.model not in TYPED_MODELS:
        raise ConfigError(
            f"--model {settings.model}: takes graphs with one node type and one edge type, this one has "
            f"{len(schema.node_types)} and {len(schema.edge_types)}: use --model {', '.join(TYPED_MODELS)}"
        )
    if settings.model in TYPED_MODELS and not several:
        raise ConfigError(
            f"--model {settings.model}: takes typed graphs, this one has one node type and one edge type: use --model "
            f"{', '.join(MODELS)}"
        )


def target_of(schema: Schema, settings: TrainSettings) -> str:
    """The node type whose table ``y`` is learnt. Raises UnknownNameError: ``--target`` names no type; ConfigError: the
    model does not go with the graph, or not exactly one type has targets."""
    check_model(schema, settings)
    given = getattr(settings, "target", None)
    able = [t for t in schema.node_types if "y" in schema.node_tables[t]]
    if given is not None:
        if schema.check_node_type(given) not in able:
            raise ConfigError(f"--target {given}: has no table y to learn from; {', '.join(able) or 'no type'} has")
        return str(given)
    if not able:
        raise ConfigError(
            f"--task {settings.task}: the graph has no labels, for no node type has table y: import it with a column of "
            "them (atta schema --labels COLUMN), or take a task that needs none: --task link, unsupervised, dgi"
        )
    chosen = [t for t in able if schema.splits[t].get("train")] or able
    if len(chosen) > 1:
        raise ConfigError(f"--target: name the node type to learn, one of {', '.join(chosen)}")
    return chosen[0]


def fan_outs_of(schema: Schema, settings: MinibatchSettings) -> dict[str, tuple[int, ...]]:
    """Fan-outs of training by edge type; ``--num-neighbors-by-type`` names edge types or relations. Raises
    UnknownNameError: a name is none of these; ConfigError: it may be several, or a type is named twice."""
    found: dict[str, tuple[int, ...]] = {}
    for name, hops in parse_fan_outs(settings.num_neighbors_by_type or "", settings.depth).items():
        if (edge_type := schema.find_edge_type(name, schema.edge_types)) in found:
            raise ConfigError(f"--num-neighbors-by-type: names {edge_type} twice")
        found[edge_type] = hops
    return {e: found.get(e, settings.fan_outs) for e in schema.edge_types}


def check_types(schema: Schema, settings: TrainSettings, target: str, also: tuple[str, ...] = ()) -> None:
    """Refuse a typed graph on which the settings make no sense; see ``TypeReach``. Raises ConfigError, UnknownNameError."""
    TypeReach.of(schema, target, settings.depth, also, embed=embedded_types(schema, settings))
    if isinstance(settings, MinibatchSettings):
        fan_outs_of(schema, settings)


def edge_type_of(schema: Schema, settings: TrainSettings) -> str:
    """The edge type of ``--edge-type``, ``a__rel__b`` or ``a,rel,b``; without it the only one that holds no reverses of
    another. Raises UnknownNameError: there is no such type; ConfigError: there are several."""
    if (given := getattr(settings, "edge_type", None)) is not None:
        words = [word.strip() for word in given.split(",")]
        listed = [e for e in schema.edge_types if words == [w.strip() for w in ",".join(split_edge_type(e)).split(",")]]
        return listed[0] if len(listed) == 1 else schema.find_edge_type(given)
    reverses = {reverse_relation(e) for e in schema.edge_types}
    chosen = [e for e in schema.edge_types if e not in reverses]
    if len(chosen) != 1:
        raise ConfigError(f"--edge-type: name the edges to predict, one of {', '.join(schema.edge_types)}")
    return chosen[0]


def check_link_types(schema: Schema, settings: TrainSettings, edge_type: str) -> None:
    """Refuse a typed graph on which edges of a type cannot be predicted. Raises ConfigError and UnknownNameError."""
    if getattr(settings, "target", None) is not None:
        raise ConfigError(f"--target: --task {settings.task} learns about both ends of --edge-type")
    source, target = schema.endpoints(edge_type)
    check_types(schema, settings, target, (source,))
    try:
        reverse = reverse_type_of(schema, edge_type, getattr(settings, "reverse_type", None))
    except ConfigError as error:
        raise ConfigError(f"--reverse-type: {str(error).partition(': ')[2]}") from None
    if reverse is not None and schema.endpoints(reverse) != (target, source):
        raise ConfigError(f"--reverse-type {reverse}: does not lead from {target} to {source}")


def check_times(schema: Schema, settings: TrainSettings, edge_type: str) -> None:
    """Refuse ``--split-by time`` where edges of a type, or their reverses, have no times. Raises ConfigError."""
    if getattr(settings, "split_by", "hash") != "time":
        return
    reverse = reverse_type_of(schema, edge_type, getattr(settings, "reverse_type", None))
    for name in sorted({edge_type, reverse or edge_type}):
        spec = schema.edge_tables[name].get("time")
        if spec is None or spec.row_shape not in ((), (1,)) or spec.dtype[1] not in "iuf":
            raise ConfigError(f"--split-by time: edge type {name} needs an edge table time with a number per edge")
