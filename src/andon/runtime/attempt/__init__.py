"""One worker's hold on a run: journal, waits, replay order, and how it ends."""
