"""The control process beside each supervisor: the only one of the two that speaks with the store.

It keeps no state of its own and may die at any moment: the supervisor starts it again.
"""
