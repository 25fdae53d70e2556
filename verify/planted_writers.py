"""Bugs of the writer and its queue: lost or reordered messages, and outcomes of another message."""

from verify.planted import Canary

CANARIES = (
    Canary(
        "written-again-behind-what-came-later",
        "writers",
        "store/writer/writer.py",
        "batch, taken = [*self._again, *items], 1",
        "batch, taken = [*items, *self._again], 1",
    ),
    Canary(
        "told-the-outcome-of-another",
        "writers",
        "store/writer/writer.py",
        "_resolve(list(zip(futures, outcomes, strict=True)))",
        "_resolve(list(zip(futures, reversed(outcomes), strict=True)))",
    ),
    Canary(
        "overtakes-what-the-thread-has",
        "writers",
        "store/writer/writer.py",
        "if self.runs <= 1 and not self._turn and not self._waiting:",
        "if self.runs <= 1 and not self._turn:",
    ),
    Canary(
        "lost-with-who-waited-for-it",
        "writers",
        "store/writer/writer.py",
        "items, self._turn = self._turn, []",
        "items, self._turn = [one for one in self._turn if not one[2].cancelled()], []",
    ),
    Canary(
        "closed-before-it-is-written",
        "writers",
        "store/writer/writer.py",
        "        self._hand_over()\n        self._sender.wait(timeout)\n",
        "        self._sender.wait(timeout)\n",
    ),
    Canary(
        "moment-taken-for-a-loss",
        "writers",
        "store/writer/writer.py",
        "                        return await self.submit(message)\n",
        "                        raise\n",
    ),
    Canary(
        "lost-and-not-written-again",
        "writers",
        "store/writer/sender.py",
        "        self._write_again([item for items in self.sent for item in items])\n",
        "        self._write_again([item for items in self.sent for item in items][1:])\n",
    ),
    Canary(
        "told-although-it-was-left-out",
        "writers",
        "store/writer/sender.py",
        "                del items[place], outcomes[place]\n",
        "                pass\n",
    ),
)
