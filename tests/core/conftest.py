"""The hypothesis profile of the core tests: how many examples each property gets."""

from hypothesis import HealthCheck, settings

# No deadline and no slowness check: a busy machine is not a broken promise.
settings.register_profile(
    "core", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("core")
