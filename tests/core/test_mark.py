"""A mark names the worker, attempt and operation that started a process."""

from hypothesis import assume, given
from hypothesis import strategies as st

from andon.core import mark

ATTEMPTS, OPERATIONS = 2**22 - 1, 2**12 - 1

workers = st.builds(
    mark.of_process, st.text(), st.text(), st.integers(0, 2**22), st.integers(0, 2**40)
)
numbers = st.integers(min_value=1, max_value=2**40)


@given(workers, numbers, numbers)
def test_a_process_belongs_to_its_worker_attempt_and_operation(
    worker: int, attempt: int, operation: int
) -> None:
    of_attempt = mark.of_attempt(worker, attempt)
    of_operation = mark.of_operation(of_attempt, operation)
    for found in (of_attempt, of_operation):
        assert mark.belongs(found, worker)
        assert mark.belongs(found, of_attempt)
    assert mark.belongs(of_operation, of_operation)
    assert not mark.belongs(of_attempt, of_operation), "another operation may have started it"
    assert not mark.belongs(worker, of_attempt), "the worker itself belongs to no run"


@given(workers, numbers, numbers, numbers)
def test_a_process_belongs_to_no_other_attempt(
    worker: int, one: int, other: int, operation: int
) -> None:
    assume((one - other) % ATTEMPTS)
    first, second = mark.of_attempt(worker, one), mark.of_attempt(worker, other)
    assert not mark.belongs(first, second)
    assert not mark.belongs(mark.of_operation(first, operation), second)


@given(workers, numbers, numbers, numbers)
def test_a_process_belongs_to_no_other_operation(
    worker: int, attempt: int, one: int, other: int
) -> None:
    assume((one - other) % OPERATIONS)
    of_attempt = mark.of_attempt(worker, attempt)
    first = mark.of_operation(of_attempt, one)
    assert not mark.belongs(first, mark.of_operation(of_attempt, other))


@given(workers, workers, numbers)
def test_a_process_belongs_to_no_other_worker(one: int, other: int, attempt: int) -> None:
    assume(one != other)
    assert not mark.belongs(mark.of_attempt(one, attempt), other)
    assert not mark.belongs(mark.of_attempt(one, attempt), mark.of_attempt(other, attempt))


@given(workers, numbers, numbers)
def test_numbers_that_wrap_around_collide_with_neither_worker_nor_attempt(
    worker: int, attempt: int, operation: int
) -> None:
    of_attempt = mark.of_attempt(worker, attempt)
    assert of_attempt != worker
    assert mark.of_operation(of_attempt, operation) != of_attempt
    assert mark.of_attempt(worker, attempt + ATTEMPTS) == of_attempt


def test_all_numbers_of_one_round_differ() -> None:
    worker = mark.of_process("boot", "pid:[1]", 1, 1)
    first = mark.of_attempt(worker, ATTEMPTS)
    assert len({mark.of_operation(first, n) for n in range(1, OPERATIONS + 1)}) == OPERATIONS
    assert mark.belongs(mark.of_operation(first, OPERATIONS), worker)


@given(workers, numbers, numbers)
def test_a_mark_fits_into_the_resource_limit_and_is_distinct(
    worker: int, attempt: int, operation: int
) -> None:
    found = mark.of_operation(mark.of_attempt(worker, attempt), operation)
    assert mark.is_mark(found)
    assert found < 2**63 - 1, "a limit above is refused, or means that there is none"


@given(st.one_of(st.integers(-1, 2**62 - 1), st.just(2**64 - 1), st.just(2**63)), workers)
def test_a_limit_that_is_no_mark_belongs_to_nobody(found: int, worker: int) -> None:
    assert not mark.is_mark(found)
    assert not mark.belongs(found, worker)
    assert not mark.belongs(found, mark.of_attempt(worker, 1))
    assert not mark.belongs(found, mark.of_operation(mark.of_attempt(worker, 1), 1))


def test_a_worker_is_named_by_its_boot_its_namespace_its_pid_and_its_start() -> None:
    names = [
        ("b", "n", 1, 1),
        ("c", "n", 1, 1),
        ("b", "m", 1, 1),
        ("b", "n", 2, 1),
        ("b", "n", 1, 2),
    ]
    assert len({mark.of_process(*name) for name in names}) == len(names)
    assert mark.of_process(*names[0]) == mark.of_process(*names[0])
