"""Runs on a terminal. All text from the store is cleaned before it is printed."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from andon.cli.colour import Tinted, paint, tinted
from andon.cli.output import clock, note, say, speaks_unicode, state
from andon.cli.table import Column, column, hang, table
from andon.control.runs.command_run import VERSION, again
from andon.control.runs.run_tree import short
from andon.core.run import TERMINAL
from andon.core.text import age, brief, clean, clean_lines, command, failure, plural

# Further steps are counted, not listed.
MOST_STEPS = 20
MOST_ATTEMPTS = 5
MOST_ERRORS = 5
# In these states the run was stopped: its error says no more.
_HELD = ("paused", "killed")
_EFFECT_TINTS = {"in_doubt": "wrong", "confirmed": "good"}
# The argument that a decision takes after its name.
_TAKES_VALUE = {"edit": " VALUE", "respond": " VALUE", "happened": " [RESULT]"}


def runs(rows: Sequence[dict[str, Any]], limit: int) -> None:
    """Print the table of `andon ps`, and below it the questions that wait for a person."""
    start = "no runs; start one: andon start AGENT key=value"
    table(RUNS, rows, none=f"{start}   (andon ps --old lists older ones)")
    known = [row for row in rows if "id" in row]
    for row in known:
        for ask in row["asks"]:
            say()
            show_ask(row["id"], ask, alone=len(row["asks"]) == 1)
    shown = [row for row in known if "name" not in row]
    if len(shown) >= limit:
        note(f"more: {command('ps', options=('--before', shown[-1]['id']))}")


def _name(row: dict[str, Any]) -> str:
    """Return the id of a run or, below its parent, its short name, indented."""
    if "depth" not in row:
        return str(row["id"])
    return indented(row.get("name") or row["more"], row["depth"])


def _of_run(cell: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Leave a cell empty in the line that only counts further children."""
    return lambda row: cell(row) if "id" in row else ""


def _doing(row: dict[str, Any]) -> str:
    return clean(row["doing"], 300) if "id" in row else command("show", row["parent_id"])


RUNS = (
    column("ID", of=_name, whole=True),
    column("AGENT", 2, _of_run(lambda row: row["agent"]), least=8),
    column("VERSION", 5, _of_run(lambda row: row["version"]), least=6),
    column("STATE", of=_of_run(lambda row: state(row["state"]))),
    column("ATTEMPT", 4, _of_run(lambda row: row["attempt"])),
    column("AGE", 3, _of_run(lambda row: age(row["age_seconds"]))),
    column("DOING", 1, _doing, least=16),
)


def alone(row: dict[str, Any]) -> str:
    """Return the name of a run shown without its parent: a child's short name, else the id."""
    parent = row["parent_id"]
    return indented(short(row["id"], parent), 1) if parent else str(row["id"])


def indented(text: str, depth: int) -> str:
    mark = "└ " if speaks_unicode() else "- "
    return "  " * (depth - 1) + mark + clean(text)


def run(found: dict[str, Any]) -> None:
    """Print the page of `andon show`."""
    name = command("show", found["id"]).removeprefix("andon show ")
    say(f"run {name}  {paint(state(found['state']))}")
    for label, text in _facts(found):
        if text:
            hang(f"  {label:<9} ", text, tint="wrong" if label == "error" else "")
    _latest(f"steps: {_counted(found['steps'])}", STEPS, found["steps"])
    _latest(f"effects: {_counted(found['effects'])}", EFFECTS, found["effects"])
    _children(found["children"])
    _latest("attempts", ATTEMPTS, found["attempts"], MOST_ATTEMPTS)
    _errors(found["errors"])
    _asks(found)
    advice = next_command(found)
    # An open ask has printed the command to type.
    if advice and (found["held_by"] or not _still_open(found)):
        note("\nnext: " + advice)


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    labels = ", ".join(f"{name}={given}" for name, given in found["labels"].items())
    over = found["state"] in TERMINAL
    return [
        ("agent", clean(f"{found['agent']} version {found['version']}")),
        ("doing", "" if over else clean(found["doing"], 500)),
        ("error", "" if found["state"] in _HELD else _error(found["error"])),
        ("result", brief(found["result"]) if found["state"] == "succeeded" else ""),
        ("input", brief(found["input"])),
        ("labels", clean(labels, 300)),
        ("parent", clean(found["parent_id"] or "")),
        ("created", clock(found["created_at"])),
        ("ended" if over else "changed", clock(found["changed_at"])),
        ("worker", clean(found["worker"] or "")),
        ("contained", _containment(found["containment"])),
        ("fence", found["fence"]),
    ]


def _containment(found: dict[str, Any] | None) -> str:
    """Describe how surely the run could be stopped from outside, as of its last claim."""
    if not found:
        return ""
    grades = ", ".join(f"{_word(what)} {found[what]}" for what in found if what != "by")
    by = f" (by {found['by']})" if found.get("by") else ""
    return clean(f"{grades}{by}", 200)


def _error(error: dict[str, Any] | None) -> str:
    if not error:
        return ""
    return clean(failure(error), 1000)


def _latest(
    title: str, columns: Sequence[Column], rows: Sequence[dict[str, Any]], most: int = MOST_STEPS
) -> None:
    """Print the last rows of a list under its title; the earlier ones are counted."""
    if rows:
        say(f"\n{title}")
        if len(rows) > most:
            say(f"  ... {len(rows) - most:,} earlier ones (--json has them all)")
        table(columns, rows[-most:], "  ")


def _counted(rows: Sequence[dict[str, Any]]) -> str:
    counts = Counter(row["state"] for row in rows)
    return ", ".join(f"{count:,} {_word(word)}" for word, count in counts.items())


def _times(step: dict[str, Any]) -> str:
    """Return how often it was executed: a range if a lost worker may have begun it again."""
    least, most = step["attempts"], step["attempts_at_most"]
    return str(least) if least == most else f"{least}-{most}"


def _took(step: dict[str, Any]) -> str | None:
    if step["finished_at"] is None:
        return None
    seconds = max(step["finished_at"] - step["started_at"], 0.0)
    return f"{seconds:.3f} s" if seconds < 10 else age(seconds)


STEPS = (
    column("STEP", of=lambda step: clean(step["name"], 60), least=16),
    column("KEY", 3, lambda step: clean(step["key"] or "-", 40), least=8),
    column("STATE"),
    column("ATTEMPTS", 2, _times),
    column("TOOK", 1, _took),
)


def _effect_state(effect: dict[str, Any]) -> Tinted:
    return tinted(_word(effect["state"]), _EFFECT_TINTS.get(effect["state"], ""))


EFFECTS = (
    column("EFFECT", of=lambda effect: clean(effect["name"], 60), least=16),
    column("KEY", of=lambda effect: clean(effect["key"], 60), whole=True),
    column("KIND", 1),
    column("STATE", of=_effect_state),
)


def _word(word: str) -> str:
    return word.replace("_", " ")


def _children(children: Sequence[dict[str, Any]]) -> None:
    if children:
        say("\nchildren")
        table(CHILDREN, children[:MOST_STEPS], "  ")
        if len(children) > MOST_STEPS:
            say(f"  ... {len(children) - MOST_STEPS:,} more (--json has them all)")


CHILDREN = (
    column("", of="id", whole=True),
    column("", 1, "agent", least=8),
    column("", of=lambda child: state(child["state"])),
)
ATTEMPTS = (
    column("", of="number"),
    column("", 1, lambda attempt: clock(attempt["claimed_at"])),
    column("", 2, "worker", whole=True),
    column("", of=lambda attempt: attempt["ending"] or "running now"),
)


def _asks(found: dict[str, Any]) -> None:
    for ask in found["asks"]:
        if ask in _still_open(found):
            say()
            show_ask(found["id"], ask, alone=len(_still_open(found)) == 1)
        elif ask["answer"] is not None:
            by = f" by {clean(ask['answer']['by'])}" if ask["answer"].get("by") else ""
            say(f"\nasked: {clean(ask['question'], 300)}")
            say(
                f"  answered{by} at {clock(ask['answered_at'])}: {clean(ask['answer']['decision'])}"
            )


def _still_open(found: dict[str, Any]) -> list[dict[str, Any]]:
    if found["state"] in TERMINAL:
        return []
    return [ask for ask in found["asks"] if ask["answered_at"] is None]


def show_ask(run_id: str, ask: dict[str, Any], *, alone: bool) -> None:
    hang("? ", clean(ask["question"], 500), tint="held")
    if ask["value"] not in (None, []):
        hang("  ", brief(ask["value"], 500))
    if ask["expires_at"] is not None:
        say(f"  until {clock(ask['expires_at'])}")
    say(f"  {how_to_answer(run_id, ask, alone=alone)}")


def how_to_answer(run_id: str, ask: dict[str, Any], *, alone: bool) -> str:
    """Return the command without the decision: one copied in a hurry must not decide anything."""
    choices = ", ".join(
        clean(choice).replace("_", "-") + _TAKES_VALUE.get(choice, "") for choice in ask["choices"]
    )
    options = () if alone else ("--ask", ask["id"])
    return f"{command('answer', run_id, 'DECISION', options=options)}   ({choices})"


def next_command(found: dict[str, Any]) -> str:
    """Return the command that a person would type next, if there is anything to do or read."""
    run_id = found["id"]
    if found["state"] in TERMINAL:
        return command("logs", run_id) if found["logged"] else ""
    if found["state"] in ("stopping", *_HELD):
        return _after_stop(found)
    if "no running worker" in found["doing"]:
        return _with_somebody(found)
    for wait in found["waits"]:
        if wait.get("kind") == "event":
            return command("send", run_id, str(wait.get("name"))) + " PAYLOAD"
    if found["state"] == "stranded":
        return command("resume", run_id) + "   (with code that matches its journal)"
    return command("wait", run_id)


def _with_somebody(found: dict[str, Any]) -> str:
    if found["version"] == VERSION:
        return again(found["id"], found["agent"], found["input"]["argv"])
    return f"andon work FILE   (with {clean(found['agent'])} version {clean(found['version'])})"


def _after_stop(found: dict[str, Any]) -> str:
    if found["stop"]:
        return command("show", found["stop"]["order"])
    return found["lifted_with"] or command("resume", found["id"])


def undo_plan(plan: dict[str, Any]) -> None:
    """Print the effects to undo in their order, then those that stay and those in doubt."""
    for number, one in enumerate(plan["undo"], 1):
        say(f"{number:>3}. undo {clean(one['name'])} {clean(one['key'])} by {clean(one['undo'])}")
    for one in plan["stays"]:
        say(f"  stays: {clean(one['name'])} {clean(one['key'])} ({one['kind']}, no undo)")
    for one in plan["in_doubt"]:
        say(f"  in doubt: {clean(one['name'])} {clean(one['key'])}: a person is asked")
    if not plan["undo"]:
        say("nothing to undo")


def _errors(found: Sequence[dict[str, Any]]) -> None:
    """Print the latest errors, and the traceback of the last one."""
    if not found:
        return
    say(f"\n{plural(len(found), 'error')}")
    if len(found) > MOST_ERRORS:
        say(f"  ... {len(found) - MOST_ERRORS:,} earlier (--json has them all)")
    for one in found[-MOST_ERRORS:]:
        what = clean(f"{one['kind']} {one['name']}".strip(), 60)
        say(f"  {clock(one['at'])}  {what}  {clean(one['type'])}: {clean(one['message'], 300)}")
    if found[-1]["traceback"]:
        say("    " + clean_lines(found[-1]["traceback"], "    "))


def obligations(found: Sequence[dict[str, Any]]) -> None:
    """Print the table of `andon ps --obligations`."""
    table(OBLIGATIONS, found, none="no effect would have to be undone")


OBLIGATIONS = (
    column("RUN", whole=True),
    column("AGENT", 4, least=8),
    column("STATE", 3, lambda one: state(one["state"])),
    column("EFFECT", of=lambda one: clean(one["effect"], 60), least=10),
    column("KEY", 1, lambda one: clean(one["key"], 60), least=8),
    column("UNDO", 2, least=10),
    column("UNDONE", least=14),
)


def migration(found: dict[str, Any]) -> None:
    """Print the outcome of `andon migrate`."""
    run = clean(found["run"])
    match found["outcome"]:
        case "migrated":
            say(f"migrated: {run} continues with version {clean(found['to'])}")
        case "late":
            note(f"run {run}: no worker has answered yet: {command('show', found['run'])}")
        case _:
            why = clean_lines(str((found["error"] or {}).get("message", "")), "  ")
            note(f"not migrated: {run} keeps version {clean(found['from'])}. {why}")
