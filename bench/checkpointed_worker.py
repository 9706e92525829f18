"""A worker that writes checkpoints after another number of records than forebay does.

``python -m bench.checkpointed_worker RECORDS worker …``, where what follows the number is forebay's own.
"""

from __future__ import annotations

import sys

from forebay.cli import main
from forebay_worker.state import checkpointed_store

if __name__ == "__main__":
    checkpointed_store.RECORDS_PER_CHECKPOINT = int(sys.argv.pop(1))
    main()
