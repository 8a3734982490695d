"""The node type that a model learns about: ``--target``, and which models go with which graphs."""

from __future__ import annotations

from atta.errors import ConfigError
from atta.partition.schema import Schema, split_edge_type
from atta.train.settings import MODELS, TYPED_MODELS, MinibatchSettings, TrainSettings
from atta.train.settings.minibatch import fan_outs_by_type, parse_fan_outs
from atta.train.tasks.reach import TypeReach

__all__ = ["check_link_types", "check_times", "check_types", "edge_type_of", "fan_outs_of", "is_typed", "target_of"]


def is_typed(schema: Schema) -> bool:
    """Whether a graph has several node types or edge types."""
    return len(schema.node_types) > 1 or len(schema.edge_types) > 1


def target_of(schema: Schema, settings: TrainSettings) -> str:
    """The node type whose table ``y`` is learnt.

    Raises:
        UnknownNameError: ``--target`` names no type.
        ConfigError: the model does not go with the graph, the type has no targets, or several types have them.
    """
    typed = settings.model in TYPED_MODELS
    if is_typed(schema) and not typed:
        raise ConfigError(
            f"--model {settings.model}: takes graphs with one node type and one edge type, this one has "
            f"{len(schema.node_types)} and {len(schema.edge_types)}: use --model {', '.join(TYPED_MODELS)}"
        )
    if typed and not is_typed(schema):
        raise ConfigError(
            f"--model {settings.model}: takes typed graphs, this one has one node type and one edge type: use --model "
            f"{', '.join(MODELS)}"
        )
    given = getattr(settings, "target", None)
    if not typed or given is not None:
        return schema.node_types[0] if given is None else _with_targets(schema, given)
    able = [t for t in schema.node_types if "y" in schema.node_tables[t]]
    if not able:
        raise ConfigError("no node type has table y: there is nothing to learn")
    trained = [t for t in able if schema.splits[t].get("train")]
    chosen = trained or able
    if len(chosen) > 1:
        raise ConfigError(f"--target: name the node type to learn, one of {', '.join(chosen)}")
    return chosen[0]


def fan_outs_of(schema: Schema, settings: MinibatchSettings) -> dict[str, tuple[int, ...]]:
    """Fan-outs of training by edge type.

    Raises:
        UnknownNameError, ConfigError: ``--num-neighbors-by-type`` names an edge type that does not exist, or one twice.
    """
    given = parse_fan_outs(settings.num_neighbors_by_type or "", settings.depth)
    return fan_outs_by_type(schema.edge_types, given, settings.fan_outs)


def check_types(schema: Schema, settings: TrainSettings, target: str) -> None:
    """Refuse a typed graph on which the settings make no sense. Raises ConfigError and UnknownNameError."""
    TypeReach.of(schema, target, settings.depth)
    if isinstance(settings, MinibatchSettings):
        fan_outs_of(schema, settings)


def edge_type_of(schema: Schema, settings: TrainSettings) -> str:
    """The edge type of ``--edge-type``, ``a__rel__b`` or ``a,rel,b``; without it the only one. Of several that are
    written so, none is meant.

    Raises:
        UnknownNameError: there is no such type. ConfigError: there are several.
    """
    given = getattr(settings, "edge_type", None)
    if given is not None:
        words = {e: split_edge_type(e) for e in schema.edge_types}
        listed = [e for e, names in words.items() if _squeezed(given) == _squeezed(",".join(names))]
        return listed[0] if len(listed) == 1 else schema.find_edge_type(given)
    if len(schema.edge_types) > 1:
        raise ConfigError(f"--edge-type: name the edges to predict, one of {', '.join(schema.edge_types)}")
    return schema.edge_types[0]


def check_link_types(schema: Schema, settings: TrainSettings, edge_type: str) -> None:
    """Refuse a typed graph on which edges of a type cannot be predicted. Raises ConfigError and UnknownNameError."""
    from atta.client.loaders.link import reverse_type_of

    if not is_typed(schema):
        raise ConfigError(
            f"--model {settings.model}: takes typed graphs, this one has one node type and one edge type: use --model "
            f"{', '.join(MODELS)}"
        )
    if getattr(settings, "target", None) is not None:
        raise ConfigError(f"--target: --task {settings.task} learns about both ends of --edge-type")
    source, target = schema.endpoints(edge_type)
    TypeReach.of(schema, target, settings.depth, (source,))
    if isinstance(settings, MinibatchSettings):
        fan_outs_of(schema, settings)
        try:
            reverse = reverse_type_of(schema, edge_type, settings.reverse_type)
        except ConfigError as error:
            raise ConfigError(f"--reverse-type: {str(error).partition(': ')[2]}") from None
        if reverse is not None and schema.endpoints(reverse) != (target, source):
            raise ConfigError(f"--reverse-type {reverse}: does not lead from {target} to {source}")


def check_times(schema: Schema, settings: TrainSettings, edge_type: str) -> None:
    """Refuse ``--split-by time`` where edges of a type, or their reverses, have no times. Raises ConfigError."""
    from atta.client.loaders.link import reverse_type_of

    if getattr(settings, "split_by", "hash") != "time":
        return
    reverse = reverse_type_of(schema, edge_type, getattr(settings, "reverse_type", None))
    for name in sorted({edge_type, reverse or edge_type}):
        spec = schema.edge_tables[name].get("time")
        if spec is None or spec.row_shape not in ((), (1,)) or spec.dtype[1] not in "iuf":
            raise ConfigError(f"--split-by time: edge type {name} needs an edge table time with a number per edge")


def _with_targets(schema: Schema, name: str) -> str:
    schema.check_node_type(name)
    if "y" not in schema.node_tables[name]:
        able = [t for t in schema.node_types if "y" in schema.node_tables[t]]
        raise ConfigError(f"--target {name}: has no table y to learn from; {', '.join(able) or 'no type'} has")
    return name


def _squeezed(listed: str) -> list[str]:
    """The words of a list with commas, without the blanks around them."""
    return [word.strip() for word in listed.split(",")]
