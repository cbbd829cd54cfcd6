"""`python -m snapfmt`."""

import sys

from snapfmt.cli import main

if __name__ == "__main__":
    sys.exit(main())
