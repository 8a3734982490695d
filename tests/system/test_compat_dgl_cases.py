"""The cases of DGL's own distributed tests (``tests/distributed`` of its repository, as of 3d16000b), one by one.

For each case our tests of the same. Others touch internals of DGL (its servers, messages and partitions in memory).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import atta

pytest.importorskip("dgl")
pytest.importorskip("torch")

from atta.compat import dgl

HERE = Path(__file__).parent

OURS: dict[str, list[str]] = {
    # test_dist_tensor.py
    "test_op": ["tensors::test_two_masks_are_joined"],
    # test_dist_graph_store.py; the checks that its tests run on DGL's servers are cases of their own
    "check_dist_graph: counts, ndata, edata": ["test_the_graph_is_that_of_the_folder"],
    "check_dist_graph: edge_subgraph": ["test_a_graph_of_given_edges_is_that_of_dgl"],
    "check_dist_graph: init node data": [
        "tensors::test_rows_are_zeros_at_first",
        "tensors::test_a_tensor_can_stand_beside_those_of_the_graph",
    ],
    "check_dist_graph: a tensor that exists": ["tensors::test_a_name_that_exists_opens_its_tensor"],
    "check_dist_graph: destroyed and created again": ["tensors::test_a_name_whose_tensor_has_gone_can_be_used_anew"],
    "check_dist_graph: anonymous": ["tensors::test_tensors_without_a_name_are_different_ones"],
    "check_dist_graph: persistent": ["tensors::test_a_persistent_tensor_outlives_its_object"],
    "check_dist_graph: write data": ["tensors::test_rows_are_written_and_read_by_id"],
    "check_dist_graph: metadata": ["tensors::test_schemes_have_shape_and_dtype"],
    "check_dist_graph: node_split": ["test_shares_are_all_that_the_mask_marks"],
    "check_dist_graph_empty": ["tensors::test_rows_are_zeros_at_first", "tensors::test_schemes_have_shape_and_dtype"],
    "check_dist_graph_hetero: types, counts, tensors": ["typed::test_types_counts_and_tensors_are_those_of_the_folder"],
    "check_dist_graph_hetero: edge_subgraph": ["typed::test_a_graph_of_given_edges_is_that_of_dgl"],
    "check_dist_emb: reads, steps": [
        "tensors::test_an_embedding_learns_as_torch_does",
        "tensors::test_an_embedding_without_an_optimiser_gives_its_first_rows",
    ],
    "check_dist_emb: read before the optimiser": ["tensors::test_an_embedding_that_was_read_gets_its_optimiser_later"],
    "check_dist_emb: two uses": ["tensors::test_two_uses_of_a_row_make_one_step"],
    "test_dist_optim_server_client": ["tensors::test_an_optimiser_is_saved_and_loaded"],
    "test_split": ["test_shares_are_all_that_the_mask_marks", "test_the_parts_are_those_of_distdgl"],
    "test_split_even": ["test_shares_are_all_that_the_mask_marks"],
    "test_standalone": ["test_the_graph_is_that_of_the_folder"],
    "test_standalone_node_emb": ["tensors::test_an_embedding_learns_as_torch_does"],
    # test_new_kvstore.py
    "test_partition_policy": ["tensors::test_a_policy_is_made_from_its_name"],
    # test_distributed_sampling.py
    "test_rpc_find_edges_shuffle": ["test_the_graph_is_that_of_the_folder"],
    "test_rpc_get_degree_shuffle": ["test_the_graph_is_that_of_the_folder"],
    "test_rpc_sampling": ["test_a_sampled_graph_has_edges_of_the_graph"],
    "test_rpc_sampling_shuffle": ["test_a_sampled_graph_has_edges_of_the_graph"],
    "test_rpc_hetero_sampling_shuffle": ["typed::test_fan_outs_by_type_and_sampled_graphs"],
    "test_rpc_hetero_sampling_empty_shuffle": ["typed::test_fan_outs_by_type_and_sampled_graphs"],
    "test_rpc_in_subgraph": ["test_a_sampled_graph_has_edges_of_the_graph"],
    "test_standalone_sampling": ["test_a_sampled_graph_has_edges_of_the_graph"],
    "test_hetero_dist_edge_dataloader_gb": ["typed::test_edges_of_a_type_come_with_pairs_and_blocks"],
    # test_mp_dataloader.py
    "test_dist_dataloader": ["test_a_sampler_of_ones_own_makes_blocks_of_ids"],
    "test_standalone (of test_mp_dataloader)": ["test_a_sampler_of_ones_own_makes_blocks_of_ids"],
    "test_dataloader_homograph": ["test_blocks_of_whole_neighbourhoods_are_those_of_dgl"],
    "test_edge_dataloader_homograph": ["test_edges_come_with_negative_pairs_and_blocks_of_their_ends"],
    "test_dataloader_heterograph": ["typed::test_blocks_of_several_types_are_those_of_dgl"],
    "test_edge_dataloader_heterograph": ["typed::test_edges_of_a_type_come_with_pairs_and_blocks"],
    "test_neg_dataloader": ["test_edges_come_with_negative_pairs_and_blocks_of_their_ends"],
    "test_multiple_dist_dataloaders": ["test_several_loaders_take_turns"],
    "test_dataloader_*_prob_or_mask": ["draws::test_edges_are_drawn_by_any_table_or_mask"],
    "test_deprecated_dataloader": ["test_blocks_of_whole_neighbourhoods_are_those_of_dgl"],
}
"""Names of cases, and our tests: of ``test_compat_dgl.py``, or ``draws::``, ``tensors::`` and ``typed::`` of its neighbours."""

NOT_OFFERED = [
    "DistGraphServer", "KVServer", "KVClient", "load_partition", "load_partition_book", "partition_graph",
    "sample_etype_neighbors", "RangePartitionBook", "node_split_by_role",
]  # fmt: skip


def test_every_test_that_the_table_names_is_there() -> None:
    modules = {"": "test_compat_dgl.py"} | {
        name: f"test_compat_dgl_{name}.py" for name in ("draws", "tensors", "typed")
    }
    there = {
        prefix: {node.name for node in ast.parse((HERE / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        for prefix, file in modules.items()
    }
    named = {test.rpartition("::")[::2] for tests in OURS.values() for test in tests}
    assert named
    assert not {(prefix, test) for prefix, test in named if test not in there[prefix]}


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_what_the_cases_use_besides_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(atta.UnknownNameError, match=f"does not offer '{name}'; it offers"):
        getattr(dgl.distributed, name)
