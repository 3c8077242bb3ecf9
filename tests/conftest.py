"""What holds for every test of this process."""

import os

# As in the engine's own process (`engine.process.engine_environment`), and before torch is imported: on two cores that
# tests share with servers under test, threads that spin make each other wait.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
