"""Operations by any name, and bandwidth by the formulas of nccl-tests."""

from __future__ import annotations

import numpy as np
import pytest

from traceviz_dag.analyze.matching.operations import (
    OPERATIONS,
    Operation,
    bandwidth,
    bus_factor,
    element_bytes,
    message_bytes,
    operation_of,
)
from traceviz_dag.read.events import MISSING


@pytest.mark.parametrize(
    ("collective", "kernel", "operation"),
    [
        ("_allgather_base", "ncclDevKernel_AllGather_RING_LL", Operation.ALL_GATHER),
        ("allgather_into_tensor_coalesced", None, Operation.ALL_GATHER),
        ("reduce_scatter_tensor_coalesced", None, Operation.REDUCE_SCATTER),
        ("_reduce_scatter_base", None, Operation.REDUCE_SCATTER),
        ("all_to_allv", "ncclDevKernel_SendRecv(x)", Operation.ALL_TO_ALL),
        ("c10d::allreduce_coalesced_", "gloo:all_reduce", Operation.ALL_REDUCE),
        ("c10d::recv_", "gloo:recv", Operation.RECEIVE),
        ("c10d::send", "gloo:send", Operation.SEND),
        (None, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", Operation.SEND_RECEIVE),
        (None, "ncclKernel_AllReduce_RING_LL_Sum_float", Operation.ALL_REDUCE),
        (None, "ncclDevKernel_Broadcast_RING_LL", Operation.BROADCAST),
        (None, "deep_ep::intranode::dispatch", Operation.OTHER),
        (None, None, Operation.OTHER),
    ],
)
def test_an_operation_is_recognised_whatever_it_is_called(collective, kernel, operation):
    assert operation_of(collective, kernel) is operation


@pytest.mark.parametrize(("dtype", "size"), [("BFloat16", 2), ("c10::Half", 2), ("Float", 4), ("Long", 8), ("?", None)])
def test_element_sizes(dtype, size):
    assert element_bytes(dtype) == size


@pytest.mark.parametrize(
    ("operation", "bytes_of_eight_ranks", "factor"),
    [
        # Bus over algorithm bandwidth for 8 ranks, by nccl-tests' doc/PERFORMANCE.md.
        (Operation.ALL_REDUCE, 400, 2 * 7 / 8),
        (Operation.ALL_GATHER, 3200, 7 / 8),
        (Operation.REDUCE_SCATTER, 400, 7 / 8),
        (Operation.ALL_TO_ALL, 400, 7 / 8),
        (Operation.BROADCAST, 400, 1),
        (Operation.REDUCE, 400, 1),
        (Operation.SEND, 400, 1),
    ],
)
def test_sizes_and_bus_bandwidth_are_those_of_nccl_tests(operation, bytes_of_eight_ranks, factor):
    code = np.array([OPERATIONS.index(operation)])
    nbytes = message_bytes(code, np.array([100]), np.array([800]), np.array([4]))
    assert nbytes.tolist() == [bytes_of_eight_ranks]
    assert bus_factor(code, np.array([8])).tolist() == [pytest.approx(factor)]
    assert bandwidth(nbytes, np.array([100])).tolist() == [bytes_of_eight_ranks / 100]


def test_what_is_not_known_has_no_bandwidth():
    code = np.array([OPERATIONS.index(Operation.ALL_REDUCE)] * 2)
    nbytes = message_bytes(code, np.array([MISSING, 5]), np.array([5, 5]), np.array([4, MISSING]))
    assert nbytes.tolist() == [MISSING, MISSING]
    assert np.isnan(bandwidth(nbytes, np.array([10, 10]))).all()
    assert np.isnan(bandwidth(np.array([10]), np.array([0]))).all()
