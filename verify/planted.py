"""The bugs that canaries plant: the file, the text and its replacement, and the layer to catch it.

Bugs in the stores that a comparison of the two finds are in planted_stores.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Canary:
    """One bug."""

    name: str
    layer: str
    file: str  # below src/andon
    old: str  # there exactly once
    new: str


FENCE = (
    "store/sqlite.sql",
    """ WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND head_seq = :before AND (SELECT epoch FROM andon_meta) = :epoch
RETURNING id;""",
    # Values are bound by position: each has to be named.
    """ WHERE id = :run_id AND :fence + :epoch >= 0 AND state = 'running' AND head_seq = :before
RETURNING id;""",
)
_SETTLE = """ WHERE id = :run_id AND fence = :fence AND epoch = :epoch AND state = 'running'
   AND (SELECT epoch FROM andon.meta) = :epoch
   AND (:before::bigint IS NULL OR head_seq = :before::bigint)
"""
_TAKEOVER = (
    "core/effect.py",
    "if kind is EffectKind.IRREVERSIBLE or not quiet:",
    "if kind is EffectKind.IRREVERSIBLE:",
)
_SYNC = ("store/sqlite/store.py", '"synchronous = FULL"')

CANARIES = (
    # ── the rules of the core ─────────────────────────────────────────────────────────────────
    Canary("takeover-without-certainty", "model", *_TAKEOVER),
    Canary(
        "start-forgotten-by-the-fold",
        "model",
        "core/journal.py",
        "        if entry.state == EffectState.STARTED:\n            # Not every",
        "        if entry.state:\n            # Not every",
    ),
    # ── the runtime and the store's SQL, on virtual time ──────────────────────────────────────
    Canary("takeover-without-certainty-in-the-fleet", "simulation", *_TAKEOVER),
    Canary("fence-not-checked", "simulation", *FENCE),
    Canary(
        "lease-trusted-too-long",
        "simulation",
        "core/lease.py",
        "return asked_at + lease_seconds * 0.8",
        "return asked_at + lease_seconds * 3.0",
    ),
    Canary(
        "silence-taken-for-death",
        "simulation",
        "store/sql/claims.py",
        'self._workers.take_back(worker_id, "silent", why, interrupted=True, limit=limit)',
        'self._workers.take_back(worker_id, "dead", why, interrupted=True, limit=limit)',
    ),
    Canary(
        "confirmed-before-it-is-done",
        "simulation",
        "runtime/effects/effect.py",
        "            try:\n                result = await self._call(self.function, *self.args)\n",
        "            try:\n                await self._confirm(self.key)\n"
        "                result = await self._call(self.function, *self.args)\n",
    ),
    Canary(
        "done-before-it-is-written",
        "simulation",
        "runtime/effects/effect.py",
        "            await self._write_intent()\n"
        '            point("effect:started", self.operation)\n',
        '            point("effect:started", self.operation)\n',
    ),
    Canary(
        "result-before-commit",
        "simulation",
        "runtime/operations/steps.py",
        "        await (journal.append(done) if plans is None else "
        "journal.append(done, *plans(back)))\n",
        "        journal.append_soon(done)\n",
    ),
    Canary(
        "end-without-its-attempt",
        "simulation",
        "store/sqlite/batch.py",
        '        self._db.executemany(self._sql["end_attempt"], ends)\n',
        "",
    ),
    Canary(
        "runs-of-the-dead-kept",
        "simulation",
        "store/sql/workers.py",
        '        held = self.q("held_runs", worker_id=worker_id)\n',
        '        held = self.q("held_runs", worker_id="")\n',
    ),
    Canary(
        "claim-forgotten",
        "simulation",
        "store/sql/claims.py",
        "            if repeated:  # its commit's outcome was unknown\n",
        "            if False:\n",
    ),
    Canary(
        "asleep-past-a-message",
        "simulation",
        "store/sql/runs.py",
        '        "seen_inbox": m.seen_inbox,\n',
        '        "seen_inbox": 1_000_000,\n',
    ),
    Canary(
        "stopped-said-before-it-is",
        "simulation",
        "runtime/worker/stop_orders.py",
        "        self._hard.add((run_id, order.fence))\n",
        "        self._hard.add((run_id, order.fence))\n"
        "        self._report_ended((run_id, order.fence))\n",
    ),
    Canary(
        "polite-order-ignored",
        "simulation",
        "runtime/worker/stop_orders.py",
        "        if attempt is None or not _changes(order, attempt.exit.order):\n"
        "            return\n",
        "        return\n",
    ),
    Canary(
        "keys-forgotten-over-a-snapshot",
        "simulation",
        "runtime/effects/effect.py",
        "if operation.record is None and operation.key is not None and "
        "attempt.journal.replay.snapshot:",
        "if operation.record is attempt:",
    ),
    Canary(
        "answers-out-of-turn",
        "simulation",
        "runtime/attempt/attempt.py",
        "            self.turns.expect(replay.answers())\n",
        "            self.turns.expect([])\n",
    ),
    Canary(
        "changed-code-answered",
        "simulation",
        "core/journal.py",
        "        if (record.kind, record.name, record.digest) != (kind, name, digest):\n",
        "        if record.kind != kind:\n",
    ),
    Canary(
        "partial-value-forgotten",
        "simulation",
        "runtime/attempt/attempt.py",
        "self.journal.checkpoints = dict(loaded.checkpoints)",
        "self.journal.checkpoints = {}",
    ),
    Canary(
        "failures-not-counted",
        "simulation",
        "core/journal.py",
        "            record.failures += 1\n",
        "            record.failures += 0\n",
    ),
    Canary(
        "own-cancellation-not-noted",
        "simulation",
        "runtime/effects/effect.py",
        "        self.attempt.journal.append_soon("
        "self.draft(Mark.CANCELLED, standing, **fields))\n",
        "",
    ),
    Canary(
        "end-of-the-journal-not-missed",
        "simulation",
        "runtime/attempt/attempt.py",
        "        if head != self.run.head_hash:\n",
        "        if not head:\n",
    ),
    Canary(
        "stubborn-code-forgotten",
        "simulation",
        "runtime/attempt/attempt.py",
        "            self.host.track(task)\n",
        "",
    ),
    Canary(
        "gone-whatever-goes-on",
        "simulation",
        "runtime/worker/worker.py",
        "        alive = bool(self.in_threads or self.active)\n",
        "        alive = False\n",
    ),
    Canary(
        "message-read-twice",
        "simulation",
        "runtime/attempt/waits.py",
        "        known = {message.id for message in self.inbox} | self._taken\n",
        "        known = {message.id for message in self.inbox}\n",
    ),
    Canary(
        "undone-before-it-is-written",
        "simulation",
        "runtime/effects/compensation.py",
        """            await self._write(row, EffectState.UNDOING, {})
            point("undo:started", row)
            await attempt.boundary()
            await self._call(row, undo)
""",
        """            await self._call(row, undo)
            await self._write(row, EffectState.UNDOING, {})
            point("undo:started", row)
""",
    ),
    Canary(
        "undone-the-first-first",
        "simulation",
        "runtime/effects/compensation.py",
        "        return sorted(owed, key=begun, reverse=True)\n",
        "        return sorted(owed, key=begun)\n",
    ),
    Canary(
        "undone-past-the-boundary",
        "simulation",
        "runtime/effects/compensation.py",
        "            await attempt.boundary()\n            await self._call(row, undo)\n",
        "            await self._call(row, undo)\n",
    ),
    Canary(
        "claims-while-it-drains",
        "simulation",
        "runtime/worker/worker.py",
        "        while not self.draining:\n            self.woken.clear()\n",
        "        while True:\n            self.woken.clear()\n",
    ),
    Canary(
        "lost-lease-not-noticed",
        "simulation",
        "runtime/worker/lease.py",
        "            self.ended.set()\n            self._on_lost(error)\n",
        "            self.ended.set()\n",
    ),
    Canary(
        "given-back-without-a-fence",
        "simulation",
        "store/shared.sql",
        _SETTLE,
        _SETTLE.replace("fence = :fence", "(fence = :fence OR :returned::boolean)"),
    ),
    Canary(
        "snapshot-not-waited-for",
        "simulation",
        "runtime/attempt/journal_writer.py",
        "        return self._journal.durable(self._future).__await__()\n",
        "        return asyncio.sleep(0).__await__()\n",
    ),
    Canary(
        "one-key-in-two-branches",
        "simulation",
        "runtime/context.py",
        "        async with operation.alone():\n            return await effects.carry_out(\n",
        "        async with contextlib.nullcontext():\n"
        "            return await effects.carry_out(\n",
    ),
    Canary(
        "left-in-the-middle-and-asked-about",
        "simulation",
        "runtime/operations/operation.py",
        "            self.attempt.exit.check()  # the attempt may have left meanwhile\n",
        "",
    ),
    Canary(
        "key-of-many-runs",
        "simulation",
        "runtime/effects/effect.py",
        'self.key = operation.key or f"{self.attempt.run.id}/{operation.place}"',
        'self.key = operation.key or f"{operation.place}"',
    ),
    Canary(
        "thread-taken-for-ended",
        "simulation",
        "runtime/effects/effect.py",
        "isinstance(error, TimeoutError) and self.timeout is not None\n",
        "error is None\n",
    ),
    Canary(
        "arguments-not-compared",
        "simulation",
        "core/journal.py",
        "        if (record.kind, record.name, record.digest) != (kind, name, digest):\n",
        "        if (record.kind, record.name) != (kind, name):\n",
    ),
    Canary(
        "shield-not-looked-at",
        "simulation",
        "runtime/attempt/attempt.py",
        "        if self.exit.stopping and not self.exit.shielded:\n",
        "        if self.exit.stopping:\n",
    ),
    Canary(
        "snapshot-overlooked",
        "simulation",
        "runtime/operations/snapshots.py",
        "        if self.unread:\n            raise Diverged(\n",
        "        if self.unread is None:\n            raise Diverged(\n",
    ),
    Canary(
        "cancelled-wait-keeps-its-message",
        "simulation",
        "runtime/operations/operation.py",
        '                    fields["give_back"] = message.id\n',
        "",
    ),
    Canary(
        "failed-step-not-tried-again",
        "simulation",
        "core/journal.py",
        "        for record in failed + [one for one in cancelled if one.seq > since]:\n",
        "        for record in [one for one in cancelled if one.seq > since]:\n",
    ),
    # ── bugs that only real processes, disks and files show ───────────────────────────────────
    Canary(
        "acknowledged-before-commit",
        "points",
        "store/writer/writer.py",
        """        \"\"\"Commit the message and answer its outcome.\"\"\"
""",
        """        if type(message).__name__ == "Append":
            self.submit(message).add_done_callback(lambda one: one.cancelled() or one.exception())
            return None
""",
    ),
    Canary(
        "latch-lifted-by-deleting-its-file",
        "points",
        "host/latch.py",
        '            return _unreadable(f"{self.path} is missing")\n',
        "            return FREE\n",
    ),
    Canary(
        "latch-unseen-by-programs",
        "points",
        "runtime/worker/embedded_latch.py",
        "        self.worker.tell(found, LEAVE_SECONDS)\n",
        "        return\n",
    ),
    Canary(
        "killed-and-not-looked-at-again",
        "points",
        "supervisor/halt/kill.py",
        "        target.survivors = target.look()\n        if not target.survivors:\n",
        "        target.survivors = []\n        if not target.survivors:\n",
    ),
    Canary(
        "halted-without-a-latch",
        "points",
        "supervisor/halt/state.py",
        '        halt.pull()\n        point("halt:latched")\n',
        "        halt.pulled = Pulled(pulled=True, order=halt.order)\n"
        '        point("halt:latched")\n',
    ),
    Canary(
        "number-taken-for-the-process",
        "points",
        "supervisor/halt/host_targets.py",
        "    if not homes.is_here(entry):  # of",
        "    if False:  # of",
    ),
    Canary(
        "stopped-where-nobody-can-see",
        "points",
        "control/halt/store_halt.py",
        "    here = (proc.boot_id(), proc.pid_namespace())\n",
        "    here = (one.boot, one.namespace)\n",
    ),
    Canary(
        "stopped-and-not-killed",
        "points",
        "control/stop/processes.py",
        "        if not remains.end(GONE_SECONDS):\n"
        "            return KillOutcome(why_not=_why_alive(remains))\n"
        "        below",
        "        below",
    ),
    Canary(
        "lifted-without-a-reason",
        "points",
        "cli/commands/resume.py",
        "        why = why if why.strip() else _reason()\n",
        "        why = why if why.strip() else '-'\n",
    ),
    Canary(
        "commit-error-taken-for-success",
        "syscalls",
        "store/sqlite/store.py",
        "            outcomes = self._batches.apply(batch, advance)\n"
        '            db.execute("COMMIT")\n',
        "            outcomes = self._batches.apply(batch, advance)\n"
        "            with contextlib.suppress(apsw.Error):\n"
        '                db.execute("COMMIT")\n',
    ),
    Canary("synchronous-off", "power", *_SYNC, '"synchronous = OFF"'),
    Canary("synchronous-normal", "power", *_SYNC, '"synchronous = NORMAL"'),
    Canary(
        "latch-not-synced",
        "power",
        "host/latch.py",
        "                os.fsync(descriptor)\n            finally:\n",
        "            finally:\n",
    ),
    Canary(
        "folder-not-synced",
        "power",
        "host/latch.py",
        "            _sync_folder(self.home)\n        except OSError as error:\n",
        "        except OSError as error:\n",
    ),
    Canary(
        "latch-lifted-by-who-has-not-seen-it",
        "power",
        "host/latch.py",
        "            refusal = may_clear(found, epoch, taken) or kept\n",
        "            refusal = kept\n",
    ),
    Canary("fence-not-checked-by-the-frozen", "brains", *FENCE),
    Canary(
        "unavailable-taken-for-success",
        "brains",
        "store/writer/writer.py",
        "                    return [error] * len(messages)\n                if pause",
        """                    answers = {"Append": None}
                    return [answers.get(type(one).__name__, error) for one in messages]
                if pause""",
    ),
    Canary(
        "acknowledged-before-commit-in-chaos",
        "chaos",
        "runtime/attempt/journal_writer.py",
        "                await writer.submit(message)\n",
        "                writer.submit(message).add_done_callback(retrieve)\n",
    ),
    Canary(
        "tool-called-before-it-is-written",
        "matrix",
        "runtime/effects/effect.py",
        "            await self._write_intent()\n"
        '            point("effect:started", self.operation)\n',
        '            point("effect:started", self.operation)\n',
    ),
    Canary(
        "result-forgotten-by-the-ledger",
        "matrix",
        "runtime/requests/tool_ledger.py",
        "                return Done(given)\n",
        "                return NOT_STARTED\n",
    ),
    Canary(
        "conversation-in-two-hands",
        "matrix",
        "runtime/requests/tool_ledger.py",
        "    if row.state not in TERMINAL | {RunState.KILLED} and row.root_id != new.root_id:\n",
        "    if row.state in new.state[:0]:\n",
    ),
    Canary(
        "orphans-left-as-they-are",
        "matrix",
        "transcript/__init__.py",
        "    if not before:\n        return Repaired(messages)\n",
        "    return Repaired(messages)\n",
    ),
    Canary(
        "bad-setting-breaks-the-program",
        "fuzz",
        "core/duration.py",
        "    except ValueError:\n        return None\n",
        "    except TypeError:\n        return None\n",
    ),
    Canary(
        "silence-taken-for-not-started",
        "fuzz",
        "transcript/ledger.py",
        "    if state is not NOT_STARTED:  # silence",
        "    if state is IN_DOUBT:  # silence",
    ),
    Canary(
        "doubt-taken-back",
        "fuzz",
        "transcript/ledger.py",
        "untouched = state is NOT_STARTED or (state is None and not asked)",
        "untouched = not isinstance(state, Done)",
    ),
    Canary(
        "large-values-not-walked",
        "flips",
        "control/verification.py",
        "    yield from _blobs(store, blobs)\n",
        "",
    ),
    Canary(
        "chain-not-checked",
        "flips",
        "core/journal.py",
        "        if head is not None and chain(head, entry) != entry.hash:\n",
        "        if head is not None and not entry.hash:\n",
    ),
)
