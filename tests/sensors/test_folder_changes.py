"""From two looks at folders to what is due: settled, complete, late, half-written, lost listings, a bounded memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sensors.folder_changes import Patience, Pending, advance, asked
from sensors.ledger import FolderRecord, FolderState
from sensors.listing import FolderLook

PATIENCE = Patience(deadline_seconds=900, attempts=3, expected_ranks={})
FOLDER = "/runs/job/iteration_8"


def look(digest: str = "a", traces: int = 4, folder: str = FOLDER, being_written: bool = False) -> FolderLook:
    return FolderLook(folder, digest, traces, being_written, newest_ns=0, changed_ns=0, is_leaf=True)


def registered(digest: str, ranks: int = 4) -> FolderRecord:
    return FolderRecord(digest, FolderState.REGISTERED, ranks, is_iteration=True)


class Watch:
    """Takes one step after the other, as ticks do."""

    def __init__(self, patience: Patience = PATIENCE, ledger: dict[str, FolderRecord] | None = None) -> None:
        self.pending: dict[str, Pending] = {}
        self.ledger = ledger or {}
        self.patience = patience

    def tick(self, now: float, *looks: FolderLook) -> list[tuple[str, bool]]:
        self.pending, due = advance(self.pending, looks, self.ledger, now, self.patience)
        self.pending = asked(self.pending, due)
        return [(one.look.folder, one.overdue) for one in due]


def test_a_folder_is_due_when_two_looks_agree():
    watch = Watch()
    assert watch.tick(0, look("a")) == []
    assert watch.tick(30, look("b")) == [], "it changed between the looks"
    assert watch.tick(60, look("b")) == [(FOLDER, False)]


def test_a_registered_folder_is_left_alone_until_it_changes():
    watch = Watch(ledger={FOLDER: registered("a")})
    assert watch.tick(0, look("a")) == [] and watch.pending == {}
    assert watch.tick(30, look("c")) == []
    assert watch.tick(60, look("c")) == [(FOLDER, False)]


def test_a_temporary_file_keeps_a_folder_waiting_until_the_deadline():
    watch = Watch()
    assert [watch.tick(now, look(being_written=True)) for now in (0, 30, 870)] == [[], [], []]
    assert watch.tick(900, look(being_written=True)) == [(FOLDER, True)]


def test_fewer_ranks_than_the_runs_earlier_iterations_wait_and_a_late_one_ends_the_wait():
    watch = Watch(ledger={"/runs/job/iteration_7": registered("x", ranks=4)})
    assert [watch.tick(now, look("a", traces=3)) for now in (0, 30, 60)] == [[], [], []]
    assert watch.tick(90, look("b", traces=4)) == []
    assert watch.tick(120, look("b", traces=4)) == [(FOLDER, False)]


def test_another_runs_size_says_nothing():
    flat = {"/runs/other": FolderRecord("x", FolderState.REGISTERED, 64, is_iteration=False)}
    watch = Watch(ledger=flat)
    watch.tick(0, look(folder="/runs/job", traces=4))
    assert watch.tick(30, look(folder="/runs/job", traces=4)) == [("/runs/job", False)]


def test_configured_ranks_come_before_those_of_earlier_iterations():
    ledger = {"/runs/job/iteration_7": registered("x", ranks=4)}
    watch = Watch(Patience(900, 3, {"/runs": 2}), ledger)
    watch.tick(0, look(traces=2))
    assert watch.tick(30, look(traces=2)) == [(FOLDER, False)]


def test_a_partial_folder_is_taken_after_the_deadline_and_its_late_rank_without_waiting():
    watch = Watch(ledger={"/runs/job/iteration_7": registered("x", ranks=4)})
    watch.tick(0, look("a", traces=3))
    watch.tick(30, look("a", traces=3))
    assert watch.tick(900, look("a", traces=3)) == [(FOLDER, True)]
    watch.ledger[FOLDER] = registered("a", ranks=3)
    assert watch.tick(930, look("a", traces=3)) == []
    watch.tick(960, look("b", traces=4))
    assert watch.tick(990, look("b", traces=4)) == [(FOLDER, False)]


def test_a_run_that_found_it_incomplete_is_asked_again_only_at_the_deadline():
    watch = Watch()
    watch.tick(0, look("a"))
    assert watch.tick(30, look("a")) == [(FOLDER, False)]
    watch.ledger[FOLDER] = FolderRecord("a", FolderState.WAITING, 4, reason="lacks ranks [4, 5, 6, 7]")
    assert [watch.tick(now, look("a")) for now in (60, 500)] == [[], []]
    assert watch.tick(900, look("a")) == [(FOLDER, True)]


def test_a_folder_whose_runs_fail_is_asked_for_a_bounded_number_of_times():
    watch = Watch()
    asked_for = [bool(watch.tick(30 * tick, look("a"))) for tick in range(100)]
    assert sum(asked_for) == PATIENCE.attempts
    watch.tick(4000, look("b"))
    assert watch.tick(4030, look("b")) == [(FOLDER, True)] or watch.tick(4060, look("b")), "a change begins anew"


def test_a_folder_that_could_not_be_listed_keeps_its_place():
    watch = Watch()
    watch.tick(0, look("a"))
    assert watch.tick(30) == [], "no look: the listing failed"
    assert watch.tick(60, look("a")) == [(FOLDER, False)]


def test_a_folder_without_traces_has_no_ranks_to_wait_for():
    watch = Watch(ledger={"/runs/job/iteration_7": registered("x", ranks=4)})
    watch.tick(0, look(folder="/runs/job", traces=0))
    assert watch.tick(30, look(folder="/runs/job", traces=0)) == [("/runs/job", False)]


def test_what_is_remembered_is_bounded_and_every_folder_gets_its_turn():
    watch = Watch()
    looks = [look(folder=f"/runs/job/iteration_{number}") for number in range(2000)]
    due: set[str] = set()
    for tick in range(12):
        found = {folder for folder, _ in watch.tick(30 * tick, *looks)}
        assert len(watch.pending) <= 500
        due |= found
        watch.ledger |= {folder: registered("a") for folder in found}
    assert len(due) == 2000
    watch.tick(4000, *looks)
    assert watch.pending == {}


digests = st.sampled_from("abc")


@given(st.lists(st.tuples(digests, st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_nothing_is_due_that_did_not_look_the_same_twice_in_a_row(history):
    watch = Watch()
    before = None
    for tick, (digest, traces, being_written) in enumerate(history):
        due = watch.tick(30 * tick, look(digest, traces, being_written=being_written))
        assert not due or (digest == before and not being_written)
        before = digest
