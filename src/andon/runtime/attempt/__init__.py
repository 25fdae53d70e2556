"""One attempt, a worker's hold on a run: its journal, its waits, replay order and its end.

Journal entries carry the attempt's fence: a worker that has lost the run cannot add to it.
"""
