"""Whether a latch is pulled, whatever the files contain."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from andon.core import latch
from andon.core.latch import FREE, Pulled, judge, may_clear, pulled_again, record, with_stop

epochs = st.integers(0, 5)
records = st.builds(
    lambda pulled, epoch: Pulled(pulled, epoch + pulled, 1.0, "ana"), st.booleans(), epochs
)
contents = st.lists(records.map(record) | st.binary(max_size=20).map(lambda b: b + b"\n"))


def content(*verdicts: Pulled) -> bytes:
    return b"".join(record(verdict) for verdict in verdicts)


MADE = Pulled(pulled=False)
PULL = Pulled(True, 1, 5.0, "ana", "odd", "cli", "rcp_a", stop="7.8")


def test_a_record_keeps_what_it_was_given() -> None:
    assert judge(content(MADE, PULL)) == PULL


@given(st.lists(records, min_size=1))
def test_the_latch_is_pulled_while_a_pull_is_newer_than_every_clear(said: list[Pulled]) -> None:
    pulls = [each.epoch for each in said if each.pulled]
    clears = [each.epoch for each in said if not each.pulled]
    found = judge(content(MADE, *said))
    if found.pulled:
        assert max(pulls) > max(clears, default=0)
    else:
        assert max(pulls, default=0) <= max(clears, default=0)


@given(contents, st.binary(max_size=50), st.booleans())
def test_no_content_of_the_file_is_an_error(lines: list[bytes], end: bytes, whole: bool) -> None:
    found = judge(b"".join(lines) + end, whole=whole)
    assert found.pulled or not found.unreadable


@given(contents, st.binary(min_size=1, max_size=20).filter(lambda b: b"\n" not in b))
def test_a_torn_record_after_the_last_newline_is_a_pull(lines: list[bytes], torn: bytes) -> None:
    found = judge(b"".join(lines) + torn)
    assert found.pulled
    assert "not complete" in found.unreadable


@given(st.integers(0, 200))
def test_a_clear_that_was_cut_off_lifts_nothing(cut: int) -> None:
    clear = record(Pulled(pulled=False, epoch=1, by="bo"))
    found = judge(content(MADE, PULL) + clear[:cut])
    assert found.pulled == (cut < len(clear))
    assert found.order == ("rcp_a" if cut < len(clear) else "")


@example([], b"\t")
@given(contents, st.binary(max_size=30).filter(lambda b: b"\n" not in b))
def test_only_a_clear_of_the_current_epoch_lifts_the_latch(lines: list[bytes], torn: bytes) -> None:
    before = b"".join(lines) + torn
    found = judge(before)
    apart = b"\n" if torn else b""
    assert not judge(before + apart + record(Pulled(pulled=False, epoch=found.epoch))).pulled
    if found.pulled and "no record" not in found.unreadable:
        older = record(Pulled(pulled=False, epoch=found.epoch - 1))
        assert judge(before + apart + older).pulled


@given(contents)
def test_the_end_of_the_file_is_enough_to_judge_it(lines: list[bytes]) -> None:
    said = content(PULL._replace(epoch=9))
    assert judge(b"rubbish" * 9 + b"\n" + said, whole=False).order == "rcp_a"
    assert judge(b"of a clear\n" + b"".join(lines) + said, whole=False).pulled


@pytest.mark.parametrize(
    ("empty", "why"),
    [
        (b"", "it has no record"),
        (b"\n", "it has no record"),
        (b" \n\n", "it has a line that cannot be understood"),
    ],
)
def test_an_empty_file_is_pulled(empty: bytes, why: str) -> None:
    assert judge(empty).unreadable == why
    assert judge(empty).pulled


def test_a_damaged_first_pull_is_a_pull() -> None:
    assert judge(b'{"pulled":0, "by": "ann"}\n').pulled


def test_a_record_longer_than_the_read_limit_is_pulled() -> None:
    assert judge(b"x" * 100 + b"\n", whole=False).pulled


@pytest.mark.parametrize(
    "line",
    [b"[]", b"7", b"{}", b'{"pulled": true}', b'{"pulled": -1}', b'{"pulled": 0}',
     b'{"pulled": "1", "cleared": 9}', b'{"pulled": 1.5}',
     b'{"cleared": "1"}', b"{" * 9, b"[" * 60_000, b'{"cleared": 9007199254740992}', b"\0" * 9],
)  # fmt: skip
def test_a_line_that_is_no_record_is_a_pull(line: bytes) -> None:
    found = judge(content(MADE, PULL, Pulled(pulled=False, epoch=1)) + line + b"\n")
    assert (found.pulled, found.epoch) == (True, 2)
    assert found.unreadable == "it has a line that cannot be understood"


def test_fields_of_the_wrong_type_are_left_out() -> None:
    said = {"pulled": 1, "at": "noon", "by": 7, "why": ["x"], "via": None}
    assert judge(json.dumps(said).encode() + b"\n") == Pulled(pulled=True, epoch=1)


@given(st.text(), st.text())
def test_a_record_is_one_line_within_the_limit(by: str, why: str) -> None:
    line = record(PULL._replace(by=by * 999, why=why * 9999))
    assert line.count(b"\n") == 1
    assert len(line) * 2 < latch.WINDOW_BYTES
    assert judge(line).by == (by * 999)[: latch.LONGEST_TEXT]


def test_of_two_simultaneous_pulls_the_first_gives_the_order() -> None:
    assert judge(content(MADE, PULL, PULL._replace(order="rcp_b"))).order == "rcp_a"


def test_a_stop_file_alone_pulls_the_latch() -> None:
    lifted = Pulled(pulled=False, epoch=4)
    assert with_stop(lifted, "7.8") == Pulled(pulled=True, epoch=5, via="STOP", stop="7.8")
    assert with_stop(lifted, "", "not allowed").unreadable == "not allowed"
    assert with_stop(lifted, "") == lifted
    assert with_stop(PULL, "7.8") == PULL


def test_a_second_pull_has_a_newer_epoch_and_the_same_order() -> None:
    second = pulled_again(PULL, Pulled(True, 1, 9.0, "bo", "me too", order="rcp_b", stop="9.9"))
    assert second == PULL._replace(epoch=2, at=9.0, stop="9.9")
    assert pulled_again(PULL, second) == PULL._replace(stop="9.9")
    doubtful = PULL._replace(unreadable="torn")
    assert pulled_again(doubtful, PULL) == PULL._replace(epoch=2)


def test_a_pull_without_an_order_gets_one() -> None:
    found = Pulled(pulled=True, epoch=3, via="STOP")
    assert pulled_again(found, PULL) == PULL._replace(epoch=4, via="STOP")
    assert pulled_again(FREE, PULL) == PULL


def test_only_the_newest_pull_can_be_lifted() -> None:
    assert may_clear(PULL, 1, "7.8") == may_clear(PULL, 1, "") == ""
    assert may_clear(PULL, 0, "7.8") == "it was pulled again since: epoch 1, you saw 0"
    assert may_clear(PULL, 1, "7.9") == "STOP was touched since it was pulled"
    assert may_clear(MADE, 0, "") == "it is not pulled"


def test_the_state_of_the_latch_is_described_in_a_few_words() -> None:
    assert str(PULL) == "halted by ana through cli: odd"
    assert str(Pulled(pulled=True, unreadable="torn")) == "halted (torn)"
    assert str(FREE) == "not pulled"
