"""The experiments are not part of the installed package: without them there is nothing to test."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("experiments") else ["*.py", "prose/*"]
