"""`python -P -m attngeo`, and what `accelerate launch -m attngeo` starts on every process.

Without -P or PYTHONSAFEPATH, Python takes the first modules from the working folder, if it has them. The others are not
looked for there.
"""

import os
import sys
from contextlib import suppress

with suppress(OSError):
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109
        del sys.path[0]

from attngeo.commands.app import main

main()
