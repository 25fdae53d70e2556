"""Bugs about orphans, which outlive their attempts, and about stops that are proved too early."""

from verify.planted import Canary

CANARIES = (
    # ── the takeover rule, for all that an owner has started ──────────────────────────────────
    Canary(
        "orphans-of-the-dead-left-alive",
        "simulation",
        "runtime/worker/peers.py",
        "    if not remains.end(REMAINS_SECONDS):\n",
        "    if False:\n",
    ),
    Canary(
        "orphans-not-looked-for",
        "model",
        "core/effect.py",
        "    return sight is Sight.ALL or (sight is Sight.PROCESS and not has_started)\n",
        "    return sight is not Sight.NOTHING\n",
    ),
    Canary(
        "orphans-not-looked-for-in-the-fleet",
        "simulation",
        "core/effect.py",
        "    return sight is Sight.ALL or (sight is Sight.PROCESS and not has_started)\n",
        "    return sight is not Sight.NOTHING\n",
    ),
    Canary(
        "started-before-it-is-written",
        "simulation",
        "runtime/attempt/processes.py",
        "        if self._host.store.free_means == Sight.PROCESS:\n",
        "        if self._host.store is None:\n",
    ),
    Canary(
        "program-of-a-call-left-alive",
        "simulation",
        "runtime/effects/effect.py",
        "            self.quiet = self.quiet and self.attempt.started.end_of(self.operation)\n",
        "            pass\n",
    ),
    Canary(
        "goodbye-taken-for-quiet",
        "twins",
        "store/postgres.sql",
        "(a.quiet OR w.state = 'dead' OR (w.state = 'gone' AND a.mark IS NULL))",
        "(a.quiet OR w.state IN ('gone', 'dead'))",
    ),
    Canary(
        "neighbour-of-the-killed-blamed",
        "twins",
        "store/postgres.sql",
        "AND t.mark IS NULL AND NOT coalesce(s.spare, w.embedded)\n LIMIT 1",
        "AND t.mark IS NULL AND coalesce(s.spare, w.embedded)\n LIMIT 1",
    ),
    # ── proofs of a stop ──────────────────────────────────────────────────────────────────────
    Canary(
        "word-taken-for-proof-of-a-kill",
        "twins",
        "core/stop.py",
        "    if kind in POLITE:\n        return Stage.VERIFIED\n"
        "    return Stage.FENCED if ends else Stage.UNPROVED\n",
        "    return Stage.VERIFIED\n",
    ),
    Canary(
        "goodbye-taken-for-proof-of-a-kill",
        "twins",
        "store/sql/targets.py",
        '        about = {"worker_id": worker_id, "stage": stage, "evidence": words}\n'
        '        rows = self.q("end_worker_targets", **about, polite=state == "gone")\n',
        '        about = {"worker_id": worker_id, "stage": stage, "evidence": words}\n'
        '        rows = self.q("end_worker_targets", **about, polite=False)\n',
    ),
    Canary(
        "started-proved-by-another-end",
        "twins",
        "store/sqlite.sql",
        " AND fence = :fence AND ended_at IS NULL AND mark IS NULL\nRETURNING",
        " AND ended_at IS NULL\nRETURNING",
    ),
    Canary(
        "end-of-an-attempt-taken-for-the-end-of-all-it-started",
        "twins",
        "store/sql/targets.py",
        '        for (mark,) in self.q("left_behind", **about):\n',
        "        for (mark,) in ():\n",
    ),
    Canary(
        "stopped-for-ever-where-nobody-looks",
        "simulation",
        "store/sql/workers.py",
        "        self._processes.give_up_looking()\n",
        "",
    ),
    # ── whose process is gone ─────────────────────────────────────────────────────────────────
    Canary(
        "leader-taken-for-the-process",
        "points",
        "host/proc.py",
        "    if found.state not in _DEAD or found.threads <= 1:\n        return found.alive\n",
        "    if found.state in _DEAD or found.threads <= 1:\n"
        "        return found.state not in _DEAD\n",
    ),
)
