"""Generates from the demo model by interpreted Triton kernels, where TRITON_INTERPRET is 1.

    python -m tests.e2e.interpreted NUM_TOKENS ID...

prints the ids that follow those of the prompt.
"""

from __future__ import annotations

import json
import sys

from cadenza.kernels.triton_backend import INTERPRETED
from tests.e2e.conftest import load_demo


def main() -> None:
    assert INTERPRETED
    num_tokens, *prompt = map(int, sys.argv[1:])
    # a small budget, so that the prompt comes in chunks, and blocks that both kinds of rows cross
    driver, _ = load_demo("float32", block_size=4).drive(max_num_seqs=2, max_num_batched_tokens=8)
    driver.add(1, prompt, max_tokens=num_tokens)
    driver.add(2, prompt[:5], max_tokens=num_tokens - 1)
    driver.run()
    sys.stdout.write(json.dumps(driver.tokens[1]))


if __name__ == "__main__":
    main()
