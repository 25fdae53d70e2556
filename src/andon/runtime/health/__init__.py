"""The health of a worker over HTTP: probes, metrics and the order to drain.

Everything answers from threads of its own, so that a blocked event loop cannot silence it.
"""
