"""Effects: their declaration, their execution, effects in doubt, and compensation.

The journal records an effect before the effect acts; one in doubt is never repeated on a guess.
"""
