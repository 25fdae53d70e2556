"""The verdict of the strict fake provider on a transcript, without HTTP."""

from typing import Any

from andon.testing.model import chat, messages, responses
from andon.testing.model.wire import ModelRefusal


def refusal(talk: Any, form: str) -> str:
    """Why the provider refuses it; empty if it is accepted."""
    try:
        match form:
            case "anthropic":
                messages.check({"model": "m", "max_tokens": 1, "messages": talk})
            case "chat":
                chat.check({"model": "m", "messages": talk})
            case _:
                responses.check({"model": "m", "input": talk}, {})
    except ModelRefusal as refused:
        return refused.message
    return ""
