"""`python -m kvlane` and the command `kvlane`. Both replace this process by the binary.

Start with `kvlane doctor` and `kvlane demo`. `kvlane bench copy` measures copies.
"""

import os
import sys

from . import _lib


def main() -> None:
    """Execute the binary in this package, or the one that KVLANE_BINARY names."""
    path = os.environ.get("KVLANE_BINARY") or str(_lib.HERE / "kvlane")
    try:
        os.execv(path, ["kvlane", *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"kvlane: execute {path}: {e.strerror}")


if __name__ == "__main__":
    main()
