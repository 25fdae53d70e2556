"""How hard hypothesis looks for a counterexample, every time `make test` runs."""

from hypothesis import HealthCheck, settings

# No deadline and no complaint about slowness: a busy machine is not a broken promise.
settings.register_profile(
    "core", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("core")
