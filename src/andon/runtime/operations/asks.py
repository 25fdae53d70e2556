"""Asks: questions to a person, and their answers."""

from typing import TYPE_CHECKING, Any

import msgspec

from andon.core.journal import EntryKind, Mark
from andon.core.values import value
from andon.runtime.operations.operation import Operation
from andon.store.store import Ask

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt

CHOICES = ("approve", "edit", "reject", "respond")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A person's answer to an ask."""

    decision: str  # approve | edit | reject | respond
    value: Any = None  # approved or edited value, or the response
    by: str = ""

    @property
    def approved(self) -> bool:
        return self.decision in ("approve", "edit")


async def opened(
    operation: Operation, question: str, about: Any, expires: float | None
) -> tuple[str, float | None]:
    """Open the ask unless it is open; return its id and its expiry time."""
    if operation.record is not None and operation.record.state == Mark.WAITING:
        ask_id, until = value.decode(operation.record.body or "null")
        return ask_id, until
    attempt = operation.attempt
    with operation.recording_cancel():
        await attempt.boundary()
    # An ask that the code cancelled is closed: asking again opens another one, with another id.
    ask_id = operation.id if operation.record is None else f"{operation.id}#{attempt.journal.seq}"
    until = None if expires is None else attempt.host.clock.now() + expires
    ask = Ask(
        id=ask_id,
        about="value",
        question=question,
        value=value.encode(about, "the ask's value").decode(),
        choices=msgspec.json.encode(CHOICES).decode(),
        expires_at=until,
    )
    with operation.recording_cancel(close_ask=ask_id):
        await operation.write(Mark.WAITING, msgspec.json.encode((ask_id, until)), ask=ask)
    return ask_id, until


async def put(
    attempt: "Attempt", question: str, about: Any, *, key: str, given: Answer | None = None
) -> Answer | None:
    """Put a question without waiting; return its answer, or None while there is none.

    `given`: an answer that reached the code by a way other than andon. The first answer holds. The
    run does not end before there is one.
    """
    digest = value.digest((question, about), {}, "the ask")
    operation = Operation(attempt, EntryKind.ASK, "ask", key, digest)
    async with operation.alone():
        if not operation.answered:
            ask_id, _ = await opened(operation, question, about, None)
            attempt.unanswered.add(ask_id)
            await attempt.receive_messages()
            message = attempt.waits.take("answer", ask_id)
            if message is not None:
                await operation.write(Mark.DONE, message.body.encode(), take=message.id)
            elif given is not None:
                await operation.write(Mark.DONE, msgspec.json.encode(given), close_ask=ask_id)
            else:
                return None
            attempt.unanswered.discard(ask_id)
        operation.find()
        answer = Answer(**await operation.answer())
    if answer.decision != "approve":
        return answer
    return Answer(decision="approve", value=about, by=answer.by)
