"""Sessions: andon's own, and wrappers that journal the reads and writes of any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import OpenAIConversationsSession
from agents.memory.session_settings import SessionSettings, resolve_session_limit
from agents.models.fake_id import FAKE_RESPONSES_ID

from andon.errors import BadInput
from andon.runtime.effects.declaration import did_not_happen, happened
from andon.runtime.requests.conversations import Conversation
from andon.runtime.sync import current
from andon.transcript.wire import plain

if TYPE_CHECKING:
    from agents import TResponseInputItem

    from andon.adapters.openai_agents.scope import CallScope


class AndonSession:
    """A session in andon's store, for both the SDK's Runner and andon's.

    A run adds its items once. When another run continues after an interruption, the session first
    adds everything the interrupted run had received and done.
    """

    def __init__(
        self,
        session_id: str,
        store: str | None = None,
        *,
        session_settings: SessionSettings | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        name = f"openai-agents/{session_id}"
        self.kept = Conversation(name, store, nameless=FAKE_RESPONSES_ID)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        ctx = current()
        found = await self.kept.items(None if ctx is None else ctx.run_id)
        most = resolve_session_limit(limit, self.session_settings)
        return found if most is None else found[max(len(found) - most, 0) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        await self.kept.add(plain(items))

    async def pop_item(self) -> TResponseInputItem | None:
        found: TResponseInputItem | None = await self.kept.pop()
        return found

    async def clear_session(self) -> None:
        await self.kept.clear()

    def close(self) -> None:
        """Close the store's connection."""
        self.kept.close()


class Journaled:
    """A session whose reads and writes are journaled, so that a replay repeats none of them."""

    def __init__(self, inner: Any, scope: CallScope) -> None:
        self._inner, self._scope = inner, scope
        self.session_id = inner.session_id
        self.session_settings = getattr(inner, "session_settings", None)

    async def get_items(self, limit: int | None = None) -> Any:
        given = {} if limit is None else {"limit": limit}
        return await self._scope.ctx.step(
            self._read, given, name="session.get_items", key=self._scope.key("session/")
        )

    async def _read(self, given: Any) -> Any:
        return plain(await self._inner.get_items(**given))

    async def add_items(self, items: Any) -> None:
        own = isinstance(self._inner, AndonSession)
        how = {"kind": "idempotent"} if own else {"probe": self._added}
        await self._effect("add_items", self._add, plain(items), **how)

    async def _add(self, items: Any, *, key: str, fence: Any) -> None:
        if isinstance(self._inner, AndonSession):
            run_id = self._scope.ctx.run_id
            await self._inner.kept.add(items, key=f"{run_id}/{key}", run_id=run_id, fence=fence)
        else:
            await self._inner.add_items(items)

    async def _added(self, items: Any) -> Any:
        last = plain(await self._inner.get_items(limit=len(items)))
        return happened() if last == items else did_not_happen()

    async def pop_item(self) -> Any:
        last = await self.get_items(1)
        return await self._effect("pop_item", self._pop, last, probe=self._popped)

    async def _pop(self, last: Any) -> Any:
        return plain(await self._inner.pop_item())

    async def _popped(self, last: Any) -> Any:
        now = plain(await self._inner.get_items(limit=1))
        return did_not_happen() if now == last else happened(last[0])

    async def clear_session(self) -> None:
        await self._effect("clear_session", self._inner.clear_session, kind="idempotent")

    async def _effect(self, name: str, do: Any, *given: Any, **options: Any) -> Any:
        key = self._scope.key("session/")
        return await self._scope.ctx.effect(do, *given, name=f"session.{name}", key=key, **options)


def keeping(scope: CallScope | None, options: dict[str, Any]) -> dict[str, Any]:
    """Replace the session in a call's options by a journaled one."""
    given = options.get("session")
    if scope is None or given is None:
        return options
    if isinstance(given, OpenAIConversationsSession):
        raise BadInput(
            "session: an OpenAIConversationsSession is kept at the provider, where andon cannot "
            "see what was added. Expected an AndonSession, or another session of this program's."
        )
    return {**options, "session": Journaled(given, scope)}
