"""Run as a program: becomes the main process of a `local` sandbox, and prints its process id.

`python -I -S local_launch.py <folder> <argv as JSON>`, with the sandbox's environment. A program of its own, because what
must happen between fork and exec (signals back to their defaults, a session, the subreaper) is not safe in a process
that has threads. Standard library only, and little of it: it runs at every start.
"""

import ctypes
import json
import os
import signal
import sys

_PR_SET_CHILD_SUBREAPER = 36


def main(folder: str, argv: list[str]) -> None:
    """Fork; the parent prints the child's id and ends, the child becomes `argv`.

    Params:
        folder: the sandbox's; holds the pipes `in` and `out`, the folder `home` and the file `log`.
    """
    # Both ends of both pipes stay open in the main process itself: it never reads an end of file and never writes into
    # a broken pipe, whoever comes and goes at the other side.
    stdin, stdout = (os.open(os.path.join(folder, name), os.O_RDWR) for name in ("in", "out"))
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.chdir(os.path.join(folder, "home"))
    failed, told = os.pipe()  # closed by a successful exec, written to by a failed one
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)  # ignored signals would be inherited, and bash cannot undo that
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            # Orphans inside become its children, as in a container: it reaps them, and none gets away.
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            for source, target in ((stdin, 0), (stdout, 1), (log, 2)):
                os.dup2(source, target)
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(told, f"{argv[0]}: {error.strerror}".encode())
        os._exit(127)
    os.close(told)
    reason = os.read(failed, 4096).decode()
    if reason:
        sys.exit(reason)
    sys.stdout.write(f"{pid}\n")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
