"""``traceviz nsys download``: fetch a profile from a Hugging Face data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.read.hub.public_profile import DATA_SET, PROFILE
from traceviz_dag.system.paths import real_path


def download(
    repository: Annotated[str, typer.Option("--repo", help="Data set to fetch from, OWNER/NAME.")] = DATA_SET,
    file: Annotated[str, typer.Option(help="File to fetch: its path, a pattern, or part of the path.")] = PROFILE,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit; the resolved commit is recorded.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Address of a mirror; default: HF_ENDPOINT, else huggingface.co.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to download to; default: HOME.", file_okay=False)
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Fetch a profile from a Hugging Face data set; an interrupted download resumes.

    The file is saved in downloads/DATA_SET/COMMIT/, with its commit and SHA-256 in FILE.download.json beside it.
    HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE work as in huggingface_hub.
    """
    if json:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from traceviz_dag.read.hub.download import Wanted
    from traceviz_dag.read.hub.download import download as fetch

    path, record = fetch(Wanted(repository, file, revision, endpoint), real_path(output or home))
    if json:
        print_json({"path": str(path), **msgspec.to_builtins(record)})
        return
    checked = "as the hub states it" if record.published_sha256 else "the hub states none"
    typer.echo(f"{path}\n{record.bytes:,} bytes of {record.repository} at {record.revision}")
    typer.echo(f"SHA-256 {record.sha256} ({checked})")
