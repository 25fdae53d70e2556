"""Bugs in the stores: the two databases differ, or both are wrong in the same way."""

from verify.planted import FENCE, Canary

CANARIES = (
    # ── the two databases differ ──────────────────────────────────────────────────────────────
    Canary(
        "returned-runs-behind-new-work",
        "twins",
        "store/sqlite.sql",
        "   SET state = :state, returned = 1, worker = NULL, available_at = unixepoch('subsec'),\n",
        "   SET state = :state, returned = 0, worker = NULL, available_at = unixepoch('subsec'),\n",
    ),
    Canary(
        "message-that-wakes-nobody",
        "twins",
        "store/shared.sql",
        "       state = CASE WHEN state = 'suspended' THEN 'queued' ELSE state END\n",
        "       state = state\n",
    ),
    Canary(
        "end-taken-from-who-was-replaced",
        "twins",
        "store/postgres_batch.sql",
        """   WHERE r.fence = a.counter AND r.epoch = a.epoch AND r.state = 'running'
     AND r.head_seq = a.before AND a.epoch = (SELECT epoch FROM andon.meta)
     AND r.parent_id IS NULL""",
        """   WHERE r.epoch = a.epoch AND r.state = 'running'
     AND r.head_seq = a.before AND a.epoch = (SELECT epoch FROM andon.meta)
     AND r.parent_id IS NULL""",
    ),
    Canary(
        "claimed-at-once-under-a-latch",
        "twins",
        "store/postgres_batch.sql",
        "           OR EXISTS (SELECT 1 FROM andon.stops WHERE latched AND lifted_at IS NULL)\n",
        "",
    ),
    Canary(
        "claimed-at-once-past-an-order",
        "twins",
        "store/postgres_batch.sql",
        "least(wake, undo, hard) > now",
        "least(wake, undo) > now",
    ),
    Canary(
        "claimed-at-once-past-who-sleeps",
        "twins",
        "store/postgres_batch.sql",
        "least(wake, undo, hard) > now",
        "least(undo, hard) > now",
    ),
    Canary(
        "claimed-at-once-past-what-is-overdue",
        "twins",
        "store/postgres_batch.sql",
        "least(wake, undo, hard) > now",
        "least(wake, hard) > now",
    ),
    Canary(
        "appended-behind-a-gap",
        "twins",
        "store/postgres_batch.sql",
        """     AND r.head_seq = a.before AND a.epoch = (SELECT epoch FROM andon.meta)
   ORDER BY""",
        """     AND a.epoch = (SELECT epoch FROM andon.meta)
   ORDER BY""",
    ),
    Canary(
        "redriven-behind-a-gap",
        "twins",
        "store/postgres.sql",
        "OR head_seq = %(before)s::bigint) AND stop IS NULL",
        "OR head_seq > -1) AND stop IS NULL",
    ),
    # ── two writers of PostgreSQL at once ─────────────────────────────────────────────────────
    Canary(
        "claimed-past-an-order-that-is-being-given",
        "twins",
        "store/postgres.sql",
        "SELECT id FROM andon.workers WHERE state = 'live' ORDER BY id FOR NO KEY UPDATE;",
        "SELECT id FROM andon.workers WHERE state = 'live' ORDER BY id;",
    ),
    Canary(
        "woken-by-two",
        "twins",
        "store/postgres.sql",
        "          ORDER BY wake_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED));",
        "          ORDER BY wake_at LIMIT %(limit)s));",
    ),
    Canary(
        "born-behind-an-order",
        "twins",
        "store/sql/orders.py",
        "            found = [] if _childless(m, new) else self._runs_meant(m)\n",
        "            found = []\n",
    ),
    # ── both databases wrong in the same way ──────────────────────────────────────────────────
    Canary(
        "claimed-although-everything-is-held",
        "twins",
        "store/sql/claims.py",
        "        free = not any(scope == StopScope.FLEET for scope, *_ in latches)\n",
        "        free = True\n",
    ),
    Canary(
        "polite-for-ever",
        "twins",
        "store/sql/claims.py",
        "        if window is not None and window <= 0:\n            self._orders.escalate()\n",
        "",
    ),
    Canary(
        "children-not-reached",
        "twins",
        "store/sql/orders.py",
        'rows = self.q("descendants", run_id=m.name, over=m.kind == StopKind.KILL)\n',
        "rows = [(m.name,)]\n",
    ),
    Canary(
        "proved-by-one-of-two-orders",
        "twins",
        "store/sql/targets.py",
        'elif row.state != State.RUNNING and not self.q("is_awaited", run_id=row.id):',
        "elif row.state != State.RUNNING:",
    ),
    # ── several orders, frozen processes, supervisors ─────────────────────────────────────────
    Canary(
        "milder-order-left-standing",
        "twins",
        "store/sql/orders.py",
        "                self._fence(row, ref.text())\n",
        "                self._fence(row, row.stop or ref.text())\n",
    ),
    Canary(
        "proved-although-another-order-is-not",
        "twins",
        "store/sql/orders.py",
        '                rows = self.q("executing")  # what waits is held by the latch\n',
        '                rows = self.q("executing")\n'
        "                rows = [(one.id,) for one in self._targets.runs(run for (run,) in rows)\n"
        "                        if one.state == State.RUNNING]\n",
    ),
    Canary(
        "frozen-process-forgotten",
        "twins",
        "store/sql/orders.py",
        "    return row.frozen is not None and row.state in (State.PAUSED, State.QUEUED)\n",
        "    return False\n",
    ),
    Canary(
        "frozen-process-of-one-database",
        "twins",
        "store/postgres.sql",
        """ WHERE w.state = 'live' AND w.supervisor IS NOT NULL AND left(a.ending, 6) = 'frozen'
   AND r.state IN ('paused', 'queued') ORDER BY r.id;""",
        """ WHERE w.state = 'live' AND w.supervisor IS NOT NULL AND left(a.ending, 6) = 'frozen'
   AND r.state = 'queued' ORDER BY r.id;""",
    ),
    Canary(
        "silent-supervisor-believed",
        "twins",
        "store/sql/supervisors.py",
        '        for (other,) in self.q("overdue_supervisors", supervisor_id=m.supervisor_id):\n',
        "        for (other,) in ():\n",
    ),
    Canary(
        "silent-supervisor-called-ended",
        "twins",
        "store/sql/supervisors.py",
        '        stage = Stage.UNPROVED if m.state == "silent" else Stage.VERIFIED\n',
        "        stage = Stage.VERIFIED\n",
    ),
    Canary(
        "supervisor-not-told",
        "twins",
        "store/sql/supervisors.py",
        '        rows = self.q("targets_of_supervisor", supervisor_id=m.supervisor_id)\n',
        '        rows = self.q("targets_of_supervisor", supervisor_id=m.supervisor_id)[1:]\n',
    ),
    Canary(
        "lifted-by-who-has-not-seen-it",
        "twins",
        "store/sql/latches.py",
        "        if newest[0][0] != m.epoch:\n",
        "        if newest[0][0] < 0:\n",
    ),
    Canary(
        "message-taken-twice",
        "twins",
        "store/sql/runs.py",
        '            self.q("take_message", id=m.take)\n',
        "            pass\n",
    ),
    Canary(
        "order-that-wakes-nobody",
        "twins",
        "store/handlers.py",
        "_NOTIFYING += (Recall, SetLimit, stops.Order, stops.Ended,",
        "_NOTIFYING += (Recall, SetLimit, stops.Ended,",
    ),
    Canary(
        "refused-when-it-is-written-twice",
        "twins",
        "store/sqlite.sql",
        FENCE[1],
        FENCE[1].replace("head_seq = :before", "head_seq >= :before"),
    ),
    Canary(
        "all-called-silent-after-an-outage",
        "twins",
        "core/lease.py",
        "    return now - in_contact_since >= lease_seconds\n",
        "    return now >= in_contact_since\n",
    ),
    Canary(
        "buried-although-it-comes-further",
        "twins",
        "core/queue.py",
        "    return 0 if lost.finished or moved else lost.fruitless + 1\n",
        "    return 0 if moved else lost.fruitless + 1\n",
    ),
    Canary(
        "buried-although-its-checkpoint-moves",
        "twins",
        "core/queue.py",
        "    return 0 if lost.finished or moved else lost.fruitless + 1\n",
        "    return 0 if lost.finished else lost.fruitless + 1\n",
    ),
    Canary(
        "same-checkpoint-called-progress",
        "twins",
        "core/queue.py",
        "    moved = lost.checkpoint is not None and not lost.known\n",
        "    moved = lost.checkpoint is not None\n",
    ),
    Canary(
        "large-value-not-written",
        "twins",
        "store/sql/runs.py",
        "        self._insert_blobs(m.blobs)\n        for effect in m.effects:\n"
        '            self.q("upsert_effect", run_id=m.run_id, **fields(effect))\n        if m.ask',
        "        for effect in m.effects:\n"
        '            self.q("upsert_effect", run_id=m.run_id, **fields(effect))\n        if m.ask',
    ),
    Canary(
        "silent-owner-called-quiet",
        "twins",
        "store/postgres.sql",
        "(a.quiet OR w.state = 'dead' OR (w.state = 'gone' AND a.mark IS NULL))",
        "(a.quiet OR w.state IN ('dead', 'silent') OR (w.state = 'gone' AND a.mark IS NULL))",
    ),
)
