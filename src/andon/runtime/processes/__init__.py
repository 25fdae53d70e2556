"""Processes: steps in processes of their own, and which run started which process."""
