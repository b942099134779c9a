"""torchrun, silent about processes that have told their own exit status (script/launch.sh)."""

import os
import sys

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

try:
    main()
except (ChildFailedError, SignalException):
    if not os.path.getsize(os.environ["TAPE_STATUS"]):
        raise
    sys.exit(1)
