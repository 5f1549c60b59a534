"""`python -P -m cadenza.engine --fd N`."""

import sys

from cadenza.engine.main import main
from cadenza.engine.process import call_oneself, die_with_the_front

if __name__ == "__main__":
    die_with_the_front()
    call_oneself("cadenza-standby")  # until it is told what to serve
    sys.exit(main())
