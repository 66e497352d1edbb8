"""What every test may use."""

import os

from hypothesis import settings

# Time limits belong to pytest-timeout: a slow machine must not make a property fail.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
