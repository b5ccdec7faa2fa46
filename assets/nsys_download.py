"""A profile fetched from a Hugging Face data set: where it came from and its checksum are in its materialization."""

import dagster as dg

from assets import groups
from assets.conventions import OWNERS
from assets.resources import TracevizHome
from assets.step_faults import told_in_a_line
from traceviz_dag.read.hub.public_profile import DATA_SET, PROFILE


class NsysDownload(dg.Config):
    """What to fetch.

    Attributes:
        repository: data set, as OWNER/NAME.
        file: path in it, a pattern, or part of a path.
        revision: branch, tag or commit; empty takes the default branch.
        endpoint: address of a mirror that TRACEVIZ_HUB_ENDPOINTS lists; empty takes HF_ENDPOINT, else huggingface.co.
    """

    repository: str = DATA_SET
    file: str = PROFILE
    revision: str = ""
    endpoint: str = ""


@dg.asset(
    group_name=groups.DOWNLOADS,
    owners=OWNERS,
    kinds={"huggingface"},
    description="A profile of Nsight Systems from a Hugging Face data set, pinned to a commit, below HOME/downloads.",
)
@told_in_a_line
def nsys_profile(
    context: dg.AssetExecutionContext, config: NsysDownload, traceviz: TracevizHome
) -> dg.MaterializeResult[None]:
    """Fetch the profile, or take what is there already; an interrupted download goes on where it ended."""
    # Only who fetches pays for the client of the hub.
    from traceviz_dag.read.hub.download import Wanted, check_endpoint, download

    wanted = Wanted(config.repository, config.file, config.revision or None, config.endpoint or None)
    check_endpoint(wanted.endpoint)
    path, record = download(wanted, traceviz.folder)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(record.sha256),
        metadata={
            "path": dg.MetadataValue.path(str(path)),
            "repository": record.repository,
            "revision": record.revision,
            "file": record.file,
            "bytes": record.bytes,
            "sha256": record.sha256,
            "checked_against_hub": record.published_sha256 is not None,
        },
    )
