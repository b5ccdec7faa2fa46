"""Profiles and traces fetched from a Hugging Face data set, and registered as inputs of the graph."""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import xxhash

from assets import groups
from assets.conventions import OWNERS
from assets.partitions import rank_trace_key, register_partitions
from assets.raw_traces import DOWNLOAD, new_observations
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import IterationInputs, register, with_digests
from traceviz_dag.lake.known_ranks import set_aside_unlisted_ranks, with_vanished_ranks
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.partition_keys import rank_key
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.read.hub.public_profile import DATA_SET, PROFILE

PARTITIONS = "iterations"
"""Metadata of a download: the keys of the iterations that its files are of."""

_MOST_NAMED = 50


class NsysDownload(dg.Config):
    """What to fetch.

    Attributes:
        repository: data set, as OWNER/NAME.
        file: path in it, a pattern, or part of a path.
        every_match: fetch all files that match, such as the traces of all ranks of an iteration.
        revision: branch, tag or commit; empty takes the default branch.
        endpoint: address of a mirror that TRACEVIZ_HUB_ENDPOINTS lists; empty takes HF_ENDPOINT, else huggingface.co.
    """

    repository: str = DATA_SET
    file: str = PROFILE
    every_match: bool = False
    revision: str = ""
    endpoint: str = ""


@dg.asset(
    name=DOWNLOAD,
    group_name=groups.SOURCES,
    owners=OWNERS,
    kinds={"huggingface"},
    description="Profiles of Nsight Systems, or traces, from a Hugging Face data set, pinned to a commit, below "
    "HOME/downloads. Open the launchpad (*Materialize*, then *Open launchpad*) to choose data set and file. The "
    "iterations and ranks that the files hold become partitions, and the sensor `downloads` computes their tables and "
    "figures.\n\n**Ask:** `traceviz nsys download`.",
)
@told_in_a_line
def nsys_profile(
    context: dg.AssetExecutionContext, config: NsysDownload, traceviz: TracevizHome
) -> dg.MaterializeResult[None]:
    """Fetch the files, or take what is there already, and register them; an interrupted download resumes."""
    # Only who fetches pays for the client of the hub.
    from traceviz_dag.read.hub.download import Wanted, check_endpoint, download, download_all

    wanted = Wanted(config.repository, config.file, config.revision or None, config.endpoint or None)
    check_endpoint(wanted.endpoint)
    fetched = download_all(wanted, traceviz.folder) if config.every_match else [download(wanted, traceviz.folder)]
    records = [record for _, record in fetched]
    inputs, fault = _registered(traceviz.folder, [path for path, _ in fetched])
    source = f"{records[0].repository} at {records[0].revision}"
    observations = [
        one._replace(metadata={"from": dg.MetadataValue.text(source)})
        for one in new_observations(context.instance, inputs)
    ]
    # Observations first: automation sees a new iteration with all of its ranks, or not at all.
    for observation in observations:
        context.log_event(observation)
    register_partitions(context.instance, inputs)
    if fault:
        context.log.warning("nothing is computed of this download: %s", fault)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(_version([record.sha256 for record in records])),
        metadata={
            "path": dg.MetadataValue.path(str(fetched[0][0])),
            "repository": records[0].repository,
            "revision": records[0].revision,
            "file": records[0].file,
            "files": len(records),
            "bytes": sum(record.bytes for record in records),
            "sha256": records[0].sha256,
            "checked_against_hub": all(record.published_sha256 is not None for record in records),
            PARTITIONS: dg.MetadataValue.json([one.key for one in inputs]),
            "partitions": dg.MetadataValue.json(_partitions(inputs)),
            **({"not_registered": fault} if fault else {}),
        },
    )


def _version(digests: Sequence[str]) -> str:
    """The checksum of one file; of several a digest of theirs."""
    return digests[0] if len(digests) == 1 else xxhash.xxh3_128_hexdigest(" ".join(digests).encode())


def _registered(home: Path, paths: Sequence[Path]) -> tuple[list[IterationInputs], str]:
    """The iterations that files are of, registered as ``traceviz analyze`` does; or why they are of none."""
    try:
        found = inputs_below(paths, home=home, with_known=True)
    except BadInputError as error:
        return [], str(error)
    lake, settled = open_lake(home), [with_vanished_ranks(home, one) for one in with_digests(home, found)]
    for one in settled:
        set_aside_unlisted_ranks(lake, one)
        register(home, one)
    return settled, ""


def _partitions(inputs: Sequence[IterationInputs]) -> list[str]:
    """The first partitions of ranks, for people."""
    return [str(rank_trace_key(one.key, rank_key(rank.rank))) for one in inputs for rank in one.ranks][:_MOST_NAMED]
