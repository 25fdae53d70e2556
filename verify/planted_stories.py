"""Bugs found by checks from outside: by worlds, people, ledgers, readers."""

from verify.planted import Canary

CANARIES = (
    # ── who may still act for an effect ───────────────────────────────────────────────────────
    Canary(
        "thread-called-quiet",
        "simulation",
        "runtime/effects/effect.py",
        "self.standing, self.quiet = EffectState.IN_DOUBT, is_async(self.function)",
        "self.standing, self.quiet = EffectState.IN_DOUBT, True",
    ),
    Canary(
        "quiet-as-it-was-before",
        "simulation",
        "runtime/effects/effect.py",
        "        self.quiet = False\n        intent",
        "        intent",
    ),
    # ── undos ─────────────────────────────────────────────────────────────────────────────────
    Canary(
        "undo-not-waited-for",
        "simulation",
        "runtime/effects/compensation.py",
        '            await self._call(row, undo)\n            point("undo:executed", row)\n',
        "            asyncio.ensure_future(self._call(row, undo))\n"
        '            point("undo:executed", row)\n',
    ),
    Canary(
        "undo-in-doubt-not-waited-for",
        "simulation",
        "runtime/effects/effect.py",
        "            await self._call(self.declared.undo, None, *self.args)\n",
        "            asyncio.ensure_future(self._call(self.declared.undo, None, *self.args))\n",
    ),
    # ── shields ───────────────────────────────────────────────────────────────────────────────
    Canary(
        "shield-without-a-limit",
        "simulation",
        "runtime/attempt/exit.py",
        "        return any(limit > self._loop.time() for limit in self.shields.values())\n",
        "        return bool(self.shields)\n",
    ),
    Canary(
        "shield-cut-by-a-drain",
        "simulation",
        "runtime/worker/drain.py",
        "                if not attempt.exit.shielded:\n"
        '                    attempt.exit.leave("stopped")\n',
        '                attempt.exit.leave("stopped")\n',
    ),
    Canary(
        "shield-left-at-a-boundary",
        "simulation",
        "runtime/worker/drain.py",
        "                if not attempt.exit.hands and not attempt.exit.shielded:\n",
        "                if not attempt.exit.hands:\n",
    ),
    # ── a reader of a damaged store ───────────────────────────────────────────────────────────
    Canary(
        "attempts-not-walked",
        "flips",
        "control/verification.py",
        "    yield from _attempts(store, row)\n",
        "",
    ),
    # ── questions ─────────────────────────────────────────────────────────────────────────────
    Canary(
        "ask-that-never-expires",
        "simulation",
        "runtime/context.py",
        'wait_recording_cancel(operation, "answer", ask_id, until)',
        'wait_recording_cancel(operation, "answer", ask_id, None)',
    ),
)
