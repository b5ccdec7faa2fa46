"""Kineto's JSON of single rows as ``%`` patterns: fixed text with slots for times and identifiers."""

from __future__ import annotations

import json

from traceviz_dag.simulate.files.identity import Identity
from traceviz_dag.simulate.settings import Era
from traceviz_dag.simulate.tree import Collective, Kernel, RowKind
from traceviz_dag.vocabulary import Kind

TIME = '"ts": %d.%03d, "dur": %d.%03d'
PYTHON_ROWS = (RowKind.PYTHON, RowKind.MODULE)

CATEGORY = {
    RowKind.PYTHON: "python_function",
    RowKind.MODULE: "python_function",
    RowKind.OPERATOR: "cpu_op",
    RowKind.ANNOTATION: "user_annotation",
    RowKind.RUNTIME: "cuda_runtime",
}
CALLBACK_ID = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cuLaunchKernel": 307,
    "cuLaunchKernelEx": 652,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaGraphLaunch": 311,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaStreamWaitEvent": 147,
    "cudaEventRecord": 135,
    "cudaEventRecordWithFlags": 370,
    "cudaStreamIsCapturing": 317,
}
"""CUPTI's callback id of each runtime call."""

STREAM_WAIT, STREAM_SYNC, CONTEXT_SYNC = "Stream Wait Event", "Stream Sync", "Context Sync"
NO_STREAM = -1
"""What Kineto writes for the stream of a row that concerns the whole device, and for what it could not resolve."""


def quoted(name: str) -> str:
    """A row's name as JSON; real traces hold raw control characters, which strict JSON forbids."""
    return json.dumps(name).replace("\\u0001", "\x01")


def escaped(text: str) -> str:
    """Fixed text inside a pattern."""
    return text.replace("%", "%%")


def complete(category: str, name: str, process: int, thread: int, arguments: str) -> str:
    """The pattern of a complete event; ``name`` and ``arguments`` are patterns themselves."""
    head = f'"ph": "X", "cat": "{category}", "name": {name}, "pid": {process}, "tid": {thread}'
    return f'  {{\n    {head},\n    {TIME},\n    "args": {{\n      {arguments}\n    }}\n  }},\n'


def flow(phase: str, name: str, process: int, thread: int) -> str:
    """The pattern of a flow's start (s) or finish (f): its id, then its time."""
    bind = ', "bp": "e"' if phase == "f" else ""
    head = f'"ph": "{phase}", "id": %d, "pid": {process}, "tid": {thread}, "ts": %d.%03d'
    return f'  {{\n    {head},\n    "cat": "{name}", "name": "{name}"{bind}\n  }},\n'


def synchronisation(kind: str, device: int, stream: int) -> str:
    """The pattern of a row of synchronisation: its time, then slots in the order of its arguments.

    A stream's wait has slots for what it waits for: stream, correlation of the record and event.
    """
    waits = '"wait_on_stream": %d, "wait_on_cuda_event_record_corr_id": %d, "wait_on_cuda_event_id": %d, '
    arguments = (
        f'"External id": %d, "cuda_sync_kind": "{kind}", {waits if kind == STREAM_WAIT else ""}'
        f'"stream": {stream}, "correlation": %d, "device": {device}, "context": 1'
    )
    return complete("cuda_sync", f'"{kind}"', device, stream, arguments)


def facts(what: Collective, identity: Identity) -> str:
    """What a row says of its communication: four slots for uneven splits, one for the number in the newest era."""
    group, era = identity.group(what), identity.settings.era
    sizes: tuple[object, ...] = (what.in_elements, what.out_elements, '"[]"', '"[]"')
    if what.uneven:
        sizes = ("%s", "%s", "%s", "%s")
    pieces = [
        f'"Collective name": "{what.operation}"',
        f'"In msg nelems": {sizes[0]}, "Out msg nelems": {sizes[1]}',
        f'"In split size": {sizes[2]}, "Out split size": {sizes[3]}',
        f'"Group size": {len(group.ranks)}, "dtype": "{what.dtype}"',
        f'"Process Group Name": "{group.name}"',
        f'"Process Group Description": "{identity.description(group)}"',
        f'"Process Group Ranks": "{list(group.ranks)}"',
    ]
    if era is Era.TORCH_2_7:
        if what.peer:
            source, destination = identity.neighbour(what)
            pieces.append(f'"Src Rank": {source}, "Dst Rank": {destination}')
        pieces.append('"Seq": %d')
    return ", ".join(pieces)


def kernel_arguments(kernel: Kernel, external: str, place: str) -> tuple[str, str]:
    """Category and arguments of a row on the GPU; ``external`` and ``place`` are patterns."""
    if kernel.kind is Kind.MEMORY:
        category = "gpu_memset" if kernel.name.startswith("Memset") else "gpu_memcpy"
        return category, f'{external}{place}, "bytes": {kernel.nbytes}, "memory bandwidth (GB/s)": 1.5'
    warps = kernel.grid * kernel.block / 32 / 132
    shape = (
        f'"registers per thread": {kernel.registers}, "shared memory": {kernel.shared_memory}, '
        f'"blocks per SM": {kernel.grid / 132:.6f}, "warps per SM": {warps:.6f}, '
        f'"grid": [{kernel.grid}, 1, 1], "block": [{kernel.block}, 1, 1], '
        f'"est. achieved occupancy %%": {min(100, int(warps * 1.4))}'
    )
    return "kernel", f'{external}"queued": 0, {place}, {shape}'
