"""``python -m m2bayes`` is the command ``m2bayes``."""

from __future__ import annotations

import sys

from m2bayes.cli import main

if __name__ == "__main__":
    sys.exit(main())
