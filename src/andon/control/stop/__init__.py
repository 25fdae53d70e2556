"""Stops of runs: who is meant, the proof, the receipt, and going on again."""
