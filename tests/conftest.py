"""How long hypothesis searches: shortly by default, four times as long with ``--hypothesis-profile=thorough``."""

from __future__ import annotations

from hypothesis import settings

from tests.generators.effort import THOROUGH

settings.register_profile("thorough", max_examples=THOROUGH)
settings.register_profile("quick", max_examples=THOROUGH // 4)
# The option of the command line is read later, and wins.
settings.load_profile("quick")
