"""Fetching a profile from a hub: found by listing, pinned, resumed after an interruption, checked."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.hub_server import COMMIT, Hub, hub
from traceviz_dag.commands.main import app
from traceviz_dag.errors import OutputError, TracevizError
from traceviz_dag.read.hub.download import DownloadError, Wanted, check_endpoint, download, matching
from traceviz_dag.read.hub.public_profile import DATA_SET

DATA = random.Random(3).randbytes(40 << 20)
NAME = "profiles/h200/baseline.t128k.host-fs-mbz-gpu-899.sqlite"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    files = {"README.md": b"# a data set", NAME: DATA, NAME.replace(".sqlite", ".nsys-rep"): b"report"}
    with hub(DATA_SET, files) as running:
        yield running


def _wanted(server: Hub, **more: str) -> Wanted:
    return Wanted(endpoint=server.address, **more)


def test_the_default_profile_is_found_by_listing_pinned_and_checked(server, tmp_path):
    path, record = download(_wanted(server), tmp_path)
    assert path.read_bytes() == DATA
    assert (record.revision, record.file, record.bytes) == (COMMIT, NAME, len(DATA))
    assert record.sha256 == record.published_sha256 == hashlib.sha256(DATA).hexdigest()
    assert json.loads(path.with_name(f"{path.name}.download.json").read_text())["revision"] == COMMIT
    before = len(server.ranges())
    assert download(_wanted(server), tmp_path) == (path, record)
    assert len(server.ranges()) == before


def test_a_download_whose_process_dies_goes_on_where_it_ended(server, tmp_path):
    half = 20 << 20
    server.stall_after = half
    script = (
        "import sys; from pathlib import Path; from traceviz_dag.read.hub.download import Wanted, download\n"
        "download(Wanted(endpoint=sys.argv[1]), Path(sys.argv[2]))"
    )
    with subprocess.Popen([sys.executable, "-c", script, server.address, str(tmp_path)], env={**os.environ}) as child:
        assert server.stalled.wait(60)
        partial = None
        while partial is None or partial.stat().st_size < half // 2:
            partial = next(tmp_path.rglob("*.part"), None)
            assert child.poll() is None
        child.kill()
    there = partial.stat().st_size
    assert 0 < there < len(DATA)
    server.stall_after = None
    server.resume.set()
    path, _ = download(_wanted(server), tmp_path)
    assert path.read_bytes() == DATA
    assert server.ranges()[-1] == f"bytes={there}-"
    assert not list(tmp_path.rglob("*.part"))


def test_a_connection_that_breaks_is_taken_up_again(server, tmp_path):
    server.cut_after = 15 << 20
    path, _ = download(_wanted(server), tmp_path)
    assert path.read_bytes() == DATA
    assert len(server.ranges()) == 2
    assert server.ranges()[1] is not None


@pytest.mark.long
def test_wrong_bytes_are_refused(server, tmp_path):
    server.wrong = True
    with pytest.raises(DownloadError, match="the hub says"):
        download(_wanted(server), tmp_path)
    assert not list(tmp_path.rglob("*.sqlite"))


def test_several_matches_are_listed_and_none_lists_what_there_is(server, tmp_path):
    server.files["other/baseline.t128k.host-fs-mbz-gpu-899.b.sqlite"] = b"x"
    with pytest.raises(DownloadError, match=r"files match.*profiles/h200.*other/baseline.*--file"):
        download(_wanted(server), tmp_path)
    with pytest.raises(DownloadError, match=r"no file matches 'nothing'; there are profiles/h200"):
        download(_wanted(server, file="nothing"), tmp_path)
    assert download(_wanted(server, file="other/*.sqlite"), tmp_path)[0].read_bytes() == b"x"


def test_unknown_data_sets_and_revisions_are_said(server, tmp_path):
    with pytest.raises(DownloadError, match="no such data set"):
        download(_wanted(server, repository="some/other"), tmp_path)
    with pytest.raises(DownloadError, match="no revision v9"):
        download(_wanted(server, revision="v9"), tmp_path)
    with pytest.raises(DownloadError, match="not the name of a data set"):
        download(_wanted(server, repository="a/b/c"), tmp_path)


def test_without_a_network_what_was_fetched_is_found_again_and_else_it_is_said(server, tmp_path, monkeypatch):
    path, record = download(_wanted(server), tmp_path)
    nowhere = Wanted(endpoint="http://127.0.0.1:9")
    assert download(nowhere, tmp_path) == (path, record)
    with pytest.raises(DownloadError, match="cannot be reached"):
        download(nowhere, tmp_path / "empty")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert download(_wanted(server), tmp_path) == (path, record)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        download(_wanted(server), tmp_path / "empty")


def test_a_commit_that_is_there_needs_no_request(server, tmp_path):
    download(_wanted(server), tmp_path)
    before = len(server.requests)
    download(_wanted(server, revision=COMMIT), tmp_path)
    assert len(server.requests) == before


def test_the_command_prints_where_the_file_is(server, tmp_path):
    result = CliRunner().invoke(
        app, ["nsys", "download", "--endpoint", server.address, "-o", str(tmp_path), "--json"], catch_exceptions=False
    )
    assert json.loads(result.stdout)["path"].endswith(NAME)


def test_a_mirror_is_taken_from_the_environment(server, tmp_path):
    script = (
        "import sys; from pathlib import Path; from traceviz_dag.read.hub.download import Wanted, download\n"
        "print(download(Wanted(file='README.md'), Path(sys.argv[1]))[0].read_text())"
    )
    environment = {**os.environ, "HF_ENDPOINT": server.address}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert "# a data set" in done.stdout


def test_of_one_profile_in_two_formats_the_export_is_taken():
    files = ["a/job.nsys-rep", "a/job.sqlite", "a/job.txt", "b/job2.sqlite"]
    assert matching("a/job", files) == ["a/job.sqlite"]
    assert matching("job", files) == ["a/job.nsys-rep", "a/job.sqlite", "b/job2.sqlite"]
    assert matching("a/job.nsys-rep", files) == ["a/job.nsys-rep"]


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/cron.d/x.sqlite", "../../../x.sqlite", "a/../../x.sqlite", "a//x.sqlite", "..\\x.sqlite", "."),
        *("a\nb.sqlite", "a\0b.sqlite", f"{'x' * 300}.sqlite", ".hidden.sqlite", "x.sqlite.download.json"),
        *(
            "x.sqlite.download.json/y.sqlite",
            ".x.sqlite.lock/y.sqlite",
            f"{'d/' * 1500}x.sqlite",
            f"{'é' * 150}.sqlite",
        ),
    ],
)
def test_a_path_of_a_hostile_hub_is_refused_and_leaves_nothing_behind(server, tmp_path, name):
    server.files = {name: b"owned"}
    home = tmp_path / "a/b/c/d"
    with pytest.raises(DownloadError, match="refused"):
        download(_wanted(server, file=name), home)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_commit_that_is_a_path_is_refused(server, tmp_path):
    server.commit = "../../../up"
    with pytest.raises(DownloadError, match="refused"):
        download(_wanted(server), tmp_path / "home")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_link_that_leads_out_of_the_home_is_not_followed(server, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    commit = tmp_path / "home/downloads" / DATA_SET.replace("/", "--") / COMMIT
    commit.parent.mkdir(parents=True)
    commit.symlink_to(outside)
    with pytest.raises(DownloadError, match="leads out of"):
        download(_wanted(server), tmp_path / "home")
    assert not list(outside.iterdir())


def test_links_and_other_names_of_files_in_the_place_of_our_own_lead_nowhere(server, tmp_path):
    wanted, theirs, made = _wanted(server, file="README.md"), tmp_path / "theirs", tmp_path / "made"
    path, _ = download(wanted, tmp_path / "home")
    path.unlink()
    theirs.write_bytes(b"#")
    state = hashlib.sha256(COMMIT.encode()).hexdigest()[:16]
    partial, lock = path.with_name(f".README.md.{state}.part"), path.with_name(".README.md.lock")
    for put in (partial.symlink_to, partial.hardlink_to):
        put(theirs)
        with pytest.raises(OutputError):
            download(wanted, tmp_path / "home")
        partial.unlink()
    lock.unlink()
    lock.symlink_to(made)
    with pytest.raises(OutputError):
        download(wanted, tmp_path / "home")
    assert theirs.read_bytes() == b"#" and not made.exists()


def test_a_hub_that_says_to_wait_for_years_is_not_waited_for(server, tmp_path):
    server.busy = True
    with pytest.raises(DownloadError, match="answered 429; try again later"):
        download(_wanted(server), tmp_path)


def test_the_token_goes_to_the_hub_and_to_no_mirror(server, tmp_path):
    script = (
        "import sys; from pathlib import Path; from traceviz_dag.read.hub.download import Wanted, download\n"
        "download(Wanted(file='README.md', endpoint=sys.argv[1] or None), Path(sys.argv[2]))"
    )
    with hub(DATA_SET, {"README.md": b"elsewhere"}) as mirror:
        environment = {**os.environ, "HF_ENDPOINT": server.address, "HF_TOKEN": "hf_SECRETTOKEN"}
        for endpoint, home in (("", "hub"), (mirror.address, "mirror")):
            command = [sys.executable, "-c", script, endpoint, str(tmp_path / home)]
            subprocess.run(command, env=environment, check=True)
        assert set(server.tokens) == {"Bearer hf_SECRETTOKEN"}
        assert mirror.requests and not mirror.tokens


def test_only_listed_mirrors_are_allowed(server, monkeypatch):
    check_endpoint(None)
    check_endpoint("https://HuggingFace.co/")
    for address in (
        server.address,
        "http://huggingface.co",
        "https://huggingface.co.evil.test",
        "https://[",
        "file:///etc",
        "https://evil.test\\@huggingface.co",
        "https://someone@huggingface.co",
    ):
        assert Wanted(endpoint=address).token() is False
        with pytest.raises(DownloadError, match="TRACEVIZ_HUB_ENDPOINTS"):
            check_endpoint(address)
    monkeypatch.setenv("TRACEVIZ_HUB_ENDPOINTS", f"https://mirror.test, {server.address}/")
    check_endpoint(server.address)
    check_endpoint("mirror.test")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"<html>a login page</html>", "answers as no hub does"),
        (b'{"id": "x", "sha": "0", "siblings": [{"size": 1}]}', "answers as no hub does"),
        (b'{"id": "x", "sha": "0", "siblings": [{"rfilename": 7, "size": "x"}]}', "answers as no hub does"),
        (b'["x"]', "answers as no hub does"),
        (b'{"id": "x", "sha": "0", "siblings": ' + b"[" * 100_000, "answers as no hub does"),
        (b" " * (1 << 20), "longer than 0 MiB"),
    ],
)
def test_what_is_no_hub_is_reported_in_a_line(server, tmp_path, said, expected, monkeypatch):
    monkeypatch.setattr("traceviz_dag.read.hub.download.LONGEST_LISTING", 200_000)
    server.said = said
    with pytest.raises(DownloadError, match=expected):
        download(_wanted(server), tmp_path)


def test_a_transfer_that_does_not_end_is_cut_at_the_size_that_the_hub_states(server, tmp_path):
    server.too_much = True
    with pytest.raises(DownloadError, match="more is sent than the 41,943,040 bytes"):
        download(_wanted(server), tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= len(DATA)


@pytest.mark.parametrize(("size", "expected"), [(1 << 62, "a size of"), (-1, "a size of"), (40 << 30, "are free")])
def test_a_size_that_cannot_be_is_refused_before_the_transfer(server, tmp_path, size, expected, monkeypatch):
    server.size = size
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 30}))
    with pytest.raises(TracevizError, match=expected):
        download(_wanted(server), tmp_path)
    assert server.ranges() == []


def test_a_listing_that_goes_on_elsewhere_takes_no_token_there(server, tmp_path):
    # The client's own listing follows the address of the next page to any host, and sends the token along.
    script = (
        "import sys; from pathlib import Path; from traceviz_dag.read.hub.download import Wanted, download\n"
        "download(Wanted(file='README.md'), Path(sys.argv[1]))"
    )
    with hub(DATA_SET, {}) as elsewhere:
        server.next_page = f"{elsewhere.address}/api/datasets/{DATA_SET}"
        environment = {**os.environ, "HF_ENDPOINT": server.address, "HF_TOKEN": "hf_SECRETTOKEN"}
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=True)
        assert server.tokens and not elsewhere.tokens


def test_a_disk_that_gets_full_is_no_broken_connection(server, tmp_path):
    limit = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from traceviz_dag.read.hub.download import Wanted, download\n"
        "from traceviz_dag.errors import OutputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: download(Wanted(endpoint=sys.argv[1]), Path(sys.argv[2]))\n"
        "except OutputError as error: print(error)"
    )
    command = [sys.executable, "-c", limit, server.address, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cannot be written (File too large)" in told
