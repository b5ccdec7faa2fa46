"""Process groups that nothing describes, known from what they carry and whom they join; or left open."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from traceviz_dag.classify.dimensions.communicator_use import Carried, decide_by_use
from traceviz_dag.classify.dimensions.dimension_evidence import DimensionDecision, GroupFacts
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension, Evidence, Phase

OPEN = DimensionDecision(Dimension.UNKNOWN, Evidence.NONE, "unknown_group")
GRADIENTS = DimensionDecision(
    Dimension.UNKNOWN, Evidence.CALL_STACK, "gradients", (Dimension.DP, Dimension.EDP), "gradient_synchronisation"
)
LARGE, COUNT = 1 << 24, 4
EXPERTS = DimensionDecision(Dimension.EP, Evidence.CALL_STACK, "expert_all_to_all_operator")
TENSOR = DimensionDecision(Dimension.TP, Evidence.CALL_STACK, "tensor_parallel_operator")
PIPELINE = DimensionDecision(Dimension.PP, Evidence.ANNOTATION, "send_receive_between_steps")


def carried(
    name: str,
    ranks: Sequence[int],
    collective: str,
    phase: Phase,
    elements: int = LARGE,
    decision: DimensionDecision = OPEN,
) -> Carried:
    group = GroupFacts(name, Dimension.UNKNOWN, (), "unknown_group", given=True, members=tuple(ranks))
    return Carried(group, collective, phase, elements, decision)


def dimensions(*uses: Carried, experts: bool = True) -> list[str]:
    return [one.dimension.value for one in decide_by_use(uses, load_rules(), {}, experts=experts)]


MESSAGES = carried("a", (0, 4), "coalesced", Phase.OTHER, decision=PIPELINE)
TOKENS = carried("b", (0, 1), "coalesced", Phase.FORWARD, decision=EXPERTS)


def test_sums_between_stages_are_the_embedding_s_gradients_and_counts_there_are_not():
    large = carried("c", (0, 4), "allreduce", Phase.OTHER)
    assert dimensions(MESSAGES, large)[1] == "embedding"
    assert dimensions(MESSAGES, carried("c", (0, 4), "allreduce", Phase.OTHER, COUNT))[1] == "unknown"
    assert dimensions(MESSAGES, carried("c", (0, 2), "allreduce", Phase.OTHER))[1] == "unknown"
    assert dimensions(MESSAGES, carried("c", (0, 4), "allreduce", Phase.BACKWARD))[1] == "unknown"


def test_what_is_broadcast_over_a_pipeline_is_a_count():
    assert dimensions(MESSAGES, carried("a", (0, 4), "broadcast", Phase.OTHER, COUNT))[1] == "control"


@pytest.mark.parametrize(
    ("elements", "expected"), [(1, "grad_norm"), (LARGE, "unknown"), (MISSING, "unknown")], ids=str
)
def test_single_numbers_of_the_optimizer_are_gradient_norms(elements, expected):
    assert dimensions(carried("c", (0, 1, 2, 3), "allreduce", Phase.OPTIMIZER, elements)) == [expected]


def test_dense_and_expert_gradients_are_distinguished_by_the_expert_parallel_group():
    dense = carried("c", (0, 1, 2, 3), "_reduce_scatter_base", Phase.BACKWARD, decision=GRADIENTS)
    expert = carried("d", (0, 2), "_reduce_scatter_base", Phase.BACKWARD, decision=GRADIENTS)
    gather = carried("d", (0, 2), "_allgather_base", Phase.FORWARD)
    assert dimensions(TOKENS, dense, expert, gather) == ["ep", "dp", "edp", "edp"]
    # Without an exchange of tokens nothing says which is which.
    assert dimensions(dense, expert) == ["unknown", "unknown"]


def test_gradients_of_equal_ranks_are_distinguished_only_by_the_counts_that_dense_ones_are_summed_with():
    one = carried("c", (0, 2), "_reduce_scatter_base", Phase.BACKWARD, decision=GRADIENTS)
    other = carried("d", (0, 2), "_reduce_scatter_base", Phase.BACKWARD, decision=GRADIENTS)
    counts = carried("c", (0, 2), "allreduce", Phase.OTHER, COUNT)
    assert dimensions(TOKENS, one, other) == ["ep", "unknown", "unknown"]
    assert dimensions(TOKENS, one, other, counts) == ["ep", "dp", "edp", "dp"]


def test_the_second_level_of_a_partial_distributed_optimizer_is_not_taken_for_the_experts():
    dense = carried("c", (0, 1, 2, 3), "_reduce_scatter_base", Phase.BACKWARD, decision=GRADIENTS)
    level = carried("d", (0, 8), "allreduce", Phase.BACKWARD, decision=GRADIENTS)
    assert dimensions(TOKENS, dense, level) == ["ep", "dp", "unknown"]


def test_a_second_group_along_tensor_ranks_is_that_of_experts():
    tokens = carried("b", (0, 4), "coalesced", Phase.FORWARD, decision=EXPERTS)
    tensor = carried("c", (0, 1), "_allgather_base", Phase.FORWARD, decision=TENSOR)
    gathers = carried("d", (0, 1, 2, 3), "_allgather_base", Phase.FORWARD)
    scatters = carried("d", (0, 1, 2, 3), "_reduce_scatter_base", Phase.BACKWARD)
    assert dimensions(tokens, tensor, gathers, scatters) == ["ep", "tp", "etp", "etp"]
    assert dimensions(tensor, gathers, scatters) == ["tp", "unknown", "unknown"]


def test_small_gathers_around_the_expert_group_count_tokens_and_large_ones_do_not():
    small = carried("c", (0, 1), "_allgather_base", Phase.FORWARD, 512)
    assert dimensions(TOKENS, small)[1] == "ep"
    # Parameters may have a communicator of their own for gathering, on the same ranks.
    assert dimensions(TOKENS, carried("c", (0, 1), "_allgather_base", Phase.FORWARD))[1] == "unknown"


def test_groups_that_a_source_names_and_the_default_group_are_left_alone():
    numbers = carried("0", (0, 1), "allreduce", Phase.OPTIMIZER, 1)
    assert dimensions(numbers) == ["unknown"]


def test_what_is_reported_stays_and_a_group_of_two_dimensions_shows_nothing():
    both = (
        carried("c", (0, 1), "_allgather_base", Phase.FORWARD, decision=TENSOR),
        carried("c", (0, 1), "coalesced", Phase.FORWARD, decision=EXPERTS),
    )
    assert dimensions(*both, carried("c", (0, 1), "allreduce", Phase.BACKWARD)) == ["tp", "ep", "unknown"]
