"""A process that has imported libraries, which takes seconds, and forks for each command of tape,
of which it imports nothing: a command reads the code as it is when it begins."""

import json
import os
import runpy
import signal
import sys
from importlib import import_module


def serve() -> None:
    """Imports the libraries that are named after a module, and runs the module for every request.

    Standard input is a socket. A request is a line: the log, or null to show the output, and the
    arguments. The answers are two lines: the command's process, which leads a process group, and
    its exit status, -N after signal N.
    """
    # A cluster signals all processes. Commands that save need their worker until they end.
    signals = signal.SIGTERM, signal.SIGHUP, signal.SIGINT
    usual = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a job's time is up: cluster.py answers
    module, *libraries = sys.argv[1:]
    for library in libraries:
        import_module(library)
    for line in sys.stdin:
        log, *sys.argv[1:] = json.loads(line)
        if command := os.fork():
            os.write(0, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]))
            continue
        os.setpgid(0, 0)
        for number, handler in usual.items():
            signal.signal(number, handler)
        os.write(0, b"%d\n" % os.getpid())  # from now on it receives signals
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if log is not None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(output, 1)
            os.dup2(output, 2)
        sys.orig_argv = [sys.executable, "-m", module, *sys.argv[1:]]  # for provenance
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return


if __name__ == "__main__":
    serve()
