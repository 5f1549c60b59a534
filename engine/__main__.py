"""`python -P -m cadenza.engine --fd N`."""

import sys

from cadenza.engine.main import main

if __name__ == "__main__":
    sys.exit(main())
