"""Text output of `andon halt`: what is proved, what is unknown, and what to do next."""

import json
import time
from typing import Any

from andon.core.text import clean, plural

HELP = """\
Usage: andon halt [--why TEXT] [--by NAME] [--timeout TIME] [--store URL] [--json]

  Stop everything, now: on this host through its latch, signals and sockets, and
  on every other host through the store. Needs no reason and asks nothing; again
  is the same order. To allow starts again: andon reauthorize

  Exit codes: 0 everything is proved to be stopped, 3 not proved in time (10s).
"""
STOPPED, DOUBT = "■", "!"


def as_json(receipt: dict[str, Any]) -> str:
    return json.dumps(receipt, indent=2) + "\n"


def pulled(command: Any) -> str:
    """Format the first block, shown once every order is sent and nothing is proved yet."""
    moment = time.strftime("%H:%M:%S", time.localtime(command.began_at))
    first = command.first_order_ms
    out = f"   first order out after {first:.0f} ms" if first is not None else ""
    again = "   (it was halted already)" if command.again else ""
    lines = [f"{STOPPED} HALTED   {moment}{out}{again}"]
    targets = plural(len(command.supervisors), "supervisor")
    alone = len(command.workers)
    targets += f" and {plural(alone, 'worker')} without one" if alone else ""
    latch = "NOT written" if command.pulled.unwritten else "written"
    lines.append(f"    latch {clean(command.home)} {latch} · {targets} notified")
    return "\n".join(lines) + "\n"


def ending(receipt: dict[str, Any], *, still: bool = False) -> str:
    """Format the result from the receipt; `still`: the user stopped waiting for it."""
    seconds = receipt["took_ms"] / 1000
    if still:
        lines = [f"{DOUBT} Not waiting any longer; the order stays in force."]
    elif receipt["proved"]:
        lines = [f"{STOPPED} EVERYTHING STOPPED, proved   ({seconds:.2f} s)"]
    else:
        lines = [f"{DOUBT} NOT PROVED after {seconds:.2f} s"]
    lines.append(f"    {_gone(receipt)}")
    lines.append(f"    {_stored(receipt['store'])}")
    lines += [f"{DOUBT}   {sentence}" for sentence in receipt["unknown"]]
    lines.append("    To allow starts again:  andon reauthorize")
    why = "" if receipt["why"] else " No reason is needed."
    lines.append(f"    receipt {receipt['receipt']}   Thank you.{why}")
    return "\n".join(lines) + "\n"


def _gone(receipt: dict[str, Any]) -> str:
    owners = [*receipt["supervisors"], *receipt["workers"]]
    if not owners:
        return "nothing was running here"
    left = sum(len(one["survivors"]) for one in owners)
    total = receipt["processes"]
    proved = sum(one["proved"] for one in owners)
    who = f"{proved} of {len(owners)} supervisors and workers proved it"
    return f"{max(total - left, 0)} of {plural(total, 'process', 'processes')} gone · {who}"


def _stored(store: dict[str, Any]) -> str:
    url = clean(store.get("url", ""))
    match store["state"]:
        case "none":
            return "no store here: no other host to notify"
        case "answered":
            return f"store {url}: the order is written{_targets(store)}"
        case _:
            return f"store {url}: the order is NOT known to be written".replace("store :", "store:")


def _targets(store: dict[str, Any]) -> str:
    if "targets" not in store:
        return ""
    kinds = [plural(count, clean(kind)) for kind, count in store["kinds"].items()]
    whom = " and ".join(filter(None, (", ".join(kinds[:-1]), *kinds[-1:])))
    proved = f"{whom}: {store['verified']} of {store['targets']} proved"
    return f" · {proved if kinds else 'nothing was executing'}"


def unknown(receipt: dict[str, Any]) -> list[str]:
    """Return a sentence for each thing that is not proved; empty if everything is."""
    found = [f"a part of the halt failed: {clean(defect)}" for defect in receipt["defects"]]
    if not receipt["latch"]["written"]:
        error = clean(receipt["latch"]["error"])
        found.append(f"the latch could not be written ({error}): what starts later is not stopped")
    for kind in ("supervisor", "worker"):
        found += [_unproved(kind, one) for one in receipt[f"{kind}s"] if not one["proved"]]
    store = receipt["store"]
    if store["state"] == "unknown":
        found.append(
            f"other hosts UNKNOWN: the store did not answer ({clean(store.get('why', ''))}); "
            "they stop by themselves within lost_contact_seconds"
        )
    found += [clean(sentence) for sentence in store.get("unproved", ())]
    found += [
        f"store {clean(url)} is another one: its processes here are stopped and report to it; "
        f"its other hosts are not proved: andon halt --store {clean(url)}"
        for url in store.get("others", ())
    ]
    return found


def _unproved(kind: str, one: dict[str, Any]) -> str:
    who = f"{kind} {clean(one['id'])} (pid {one['pid']})"
    if one["survivors"]:
        return f"{who}: still alive: {', '.join(map(str, one['survivors']))}"
    return f"{who}: {clean(one['how'])}"
