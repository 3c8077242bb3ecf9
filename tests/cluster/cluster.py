#!/usr/bin/env python3
"""Start, look at, fill with images, and stop a real Kubernetes on this machine; see README.md beside this file."""

import sys
from pathlib import Path

# Run as a script, with no package installed: import from the repository's root, as the tests do.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.cluster.kube.command_line import main  # noqa: E402 - the path above comes first

if __name__ == "__main__":
    sys.exit(main())
