"""Damage files of every format at random, read them as a user does, and print what happened.

    python benchmarks/attack.py                                   # 300 attempts for each format
    python benchmarks/attack.py --format npz ONNX --attempts 20   # two formats
    python benchmarks/attack.py --format npz --only 17            # one attempt again

A fault is a hang, too much memory, an exception that is not an error of the package, or a number that changed
although the format reveals such damage. The exit code is then 1, and `--out` keeps the inputs.
"""

import argparse
import importlib
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from attacks.damage import damage  # noqa: E402
from attacks.formats import FORMATS, FaultError  # noqa: E402

FORK = multiprocessing.get_context("fork")
MAX_CPU_SECONDS, MAX_SECONDS, MAX_MIB = 20, 120.0, 1500
OUTCOMES = ("equal", "different", "refused", "fault")


class Answer(NamedTuple):
    """What came of an attempt; the numbers and modules of the undamaged input serve the other attempts."""

    outcome: str
    why: str
    numbers: dict[str, str] | None = None
    modules: Sequence[str] = ()


def run_attempt(number: int, *, name: str, folder: Path, seed: int, expected: dict[str, str]) -> Answer:
    """Damage an input, unless the number is 0, and read it in a process of its own."""
    here = folder / f"{name} {number}"
    shutil.rmtree(here, ignore_errors=True)
    if number:
        shutil.copytree(folder / f"{name} 0", here)
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=read_damaged, args=(number, name, here, seed, expected, sender))
    process.start()
    sender.close()
    what, answer, end = "", None, time.monotonic() + MAX_SECONDS
    while answer is None:
        try:
            if receiver.poll(0.02):
                message = receiver.recv()
                what, answer = (message, None) if isinstance(message, str) else (what, message)
        except EOFError:
            answer = Answer("fault", f"it died, or took {MAX_CPU_SECONDS} s of CPU time")
        if time.monotonic() > end:
            answer = Answer("fault", f"no answer in {MAX_SECONDS:g} s")
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        if peak and int(peak[1]) > MAX_MIB << 10:
            answer = Answer("fault", f"more than {MAX_MIB} MiB")
    process.kill()
    process.join()
    if answer.outcome != "fault" and number:
        shutil.rmtree(here)
    return answer._replace(why=f"{name} {number}, {what}: {answer.why}")


def read_damaged(
    number: int, name: str, folder: Path, seed: int, expected: dict[str, str], sender: Connection
) -> None:
    """Damage an input, send how, read it and send what came of it."""
    form, kind, file = FORMATS[name], "", ""
    path = folder / form.file
    warnings.simplefilter("ignore")
    if number:
        kind, file, what = damage(path, random.Random(f"{name} {seed} {number}"))
        sender.send(f"{file}: {kind} {what}")
    else:
        folder.mkdir(parents=True)
        form.write(path)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C libraries print too
    try:
        reading = form.read(path)
    except FaultError as error:
        sender.send(Answer("fault", str(error)))
        return
    numbers = reading.numbers
    changed = sorted(each for each in numbers.keys() & expected if numbers[each] != expected[each])
    outcome, why = "equal", ""
    if changed:
        is_revealed = kind in form.kinds and re.fullmatch(form.files, file)
        outcome, why = "fault" if is_revealed else "different", f"{', '.join(changed)} changed"
    elif reading.refusals:
        outcome, why = "refused", reading.refusals[0]
    sender.send(Answer(outcome, why, numbers, () if number else tuple(sys.modules)))
    time.sleep(MAX_SECONDS)  # until the memory has been measured


def main() -> int:
    """Run the attempts and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=[*FORMATS], metavar="NAME",
                        help=f"default: all of {', '.join(FORMATS)}")  # fmt: skip
    parser.add_argument("--attempts", type=int, default=300, help="for each format, default 300")
    parser.add_argument("--only", type=int, help="number of the only attempt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/attack"), help="folder for inputs with faults")
    args = parser.parse_args()
    faults, numbers = 0, [args.only] if args.only else range(1, args.attempts + 1)
    print(f"| format | {' | '.join(OUTCOMES)} | seconds | must be noticed |\n| --- |{' --: |' * 5} --- |")
    for name in args.format:
        start, run = time.monotonic(), partial(run_attempt, name=name, folder=args.out, seed=args.seed)
        undamaged = run(0, expected={})
        if undamaged.outcome != "equal":
            raise SystemExit(f"the undamaged input is {undamaged.outcome}: {undamaged.why}")
        for module in undamaged.modules:  # once, instead of in each attempt
            with suppress(ImportError):
                importlib.import_module(module)
        with ProcessPoolExecutor(2, FORK) as pool:
            answers = [*pool.map(partial(run, expected=undamaged.numbers), numbers)]
        shutil.rmtree(args.out / f"{name} 0")
        counts = Counter(answer.outcome for answer in answers)
        cells = [name, *(counts[outcome] for outcome in OUTCOMES), round(time.monotonic() - start)]
        print(f"| {' | '.join(map(str, cells))} | {FORMATS[name].why} |", flush=True)
        for answer in answers:
            if answer.outcome == "fault":
                print(f"FAULT {answer.why:.500}", flush=True)
        faults += counts["fault"]
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
