"""Commands whose outputs, or whose cache, are on a full disk. A script, for a process that may mount file systems.

    unshare --mount --map-root-user python full_disk.py FOLDER    ← lines of JSON → a line of JSON for each

A request is [arguments, environment, names of files, bytes]: so many bytes are free on FOLDER/disk, where these files
exist. The answer is [exit code, stderr, the files on the disk and their contents]. Arguments are run in FOLDER.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.forks import start_forks

SIZE = 1 << 20
FILLER = "filler"


def main(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    with start_forks() as forks:
        for line in sys.stdin:
            arguments, environment, names, room = json.loads(line)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", disk], check=True)
            try:
                for name in names:
                    (disk / name).write_text("old")
                state = os.statvfs(disk)
                (disk / FILLER).write_bytes(bytes(state.f_bavail * state.f_frsize - room))
                done = forks.run(arguments, cwd=folder, environment={**os.environ, **environment})[0]
                left = {
                    str(path.relative_to(disk)): path.read_text("utf-8", "replace") if path.is_file() else None
                    for path in disk.rglob("*")
                    if path.name != FILLER
                }
            finally:
                subprocess.run(["umount", "--lazy", disk], check=True)
            print(json.dumps([done.returncode, done.stderr, left]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
