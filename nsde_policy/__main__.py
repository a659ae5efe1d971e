"""Start of the program `nsde-policy`: Ctrl-C ends it quietly at any time, also while it imports and exits."""

import os
import signal
import socket
import sys
import threading
import time

PATIENCE_S = 1.0
"""Seconds that a program has to end by itself after a second Ctrl-C."""


def start() -> int:
    """Import the commands, run one and return its exit code."""
    open_missing_streams()
    usual = signal.getsignal(signal.SIGINT)
    quiet = usual if usual == signal.SIG_IGN else lambda *_: os._exit(130)  # ignored in the background
    signal.signal(signal.SIGINT, quiet)
    from nsde_policy.cli.main import main

    signal.signal(signal.SIGINT, usual)
    end_at_second_interrupt()
    try:
        return main()
    finally:
        signal.signal(signal.SIGINT, quiet)


def open_missing_streams() -> None:
    """Open standard streams that were closed, so that no other file takes their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def end_at_second_interrupt() -> None:
    """End the program soon after a second Ctrl-C, even in a computation in which Python cannot react."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)  # gets the number of every signal

    def watch() -> None:
        interrupts = 0
        while interrupts < 2:
            interrupts += reader.recv(1)[0] == signal.SIGINT
        time.sleep(PATIENCE_S)
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(start())
