"""Settings for all tests: every graph is checked at every stage, and no warning goes unseen."""

import os

os.environ["YOSEGI_CHECK"] = "1"  # read when yosegi is imported
os.environ["YOSEGI_CALIBRATE"] = "0"  # plans follow the priors, and stay as they are, unless a test measures
os.environ["YOSEGI_BACKGROUND"] = "0"  # what a device is asked for, it computes, however long it compiles

from hypothesis import HealthCheck, settings

settings.register_profile(
    "yosegi", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("yosegi")
