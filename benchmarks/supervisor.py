"""Cells measured one after the other in a process of their own, which may hang or die: the rest goes on in a
fresh one.

The worker writes a line of JSON for each thing that happens into a file; the supervisor reads it, ends a
worker that shows no sign of life, and starts the next. A cell that killed its worker is measured once more
for each contender that was at work when it did, without that one.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 12.0  # a worker that starts later than this before the end would measure nothing
POLL_S = 0.2


@dataclass(frozen=True)
class Job:
    """A cell by number. without: contenders that killed a worker in it, and how."""

    cell: int
    without: tuple[tuple[str, str], ...] = ()

    def leaving_out(self, variant: str, error: str) -> Job:
        return Job(self.cell, (*self.without, (variant, error)))


class Lines:
    """A file of JSON lines: appended to by one process, read by another while it grows."""

    def __init__(self, path: Path):
        self.path, self._read = path, 0

    def write(self, **item: Any) -> None:
        with self.path.open("a") as f:
            f.write(json.dumps(item) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def new(self) -> Iterator[dict[str, Any]]:
        """What was written since the last call; a line that is still being written comes with the next."""
        text = self.path.read_bytes()[self._read :] if self.path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        yield from (json.loads(line) for line in whole.splitlines())


# --- in the worker ------------------------------------------------------------------------------------------


def _doing(lines: Lines, cell: int, text: str) -> None:
    lines.write(kind="doing", cell=cell, text=text)


def serve(
    jobs: Sequence[Job],
    lines: Lines,
    until: float,
    measure: Callable[[Job, Callable[[str], None]], dict[str, Any]],
) -> None:
    """Measure until the time is up (by time.time). measure: (job, what is being done) -> what is found, as
    JSON."""
    from tilegen.runtime.timing import ContenderDied

    for job in jobs:
        if time.time() > until:
            return
        lines.write(kind="begun", cell=job.cell)
        try:
            found = measure(job, functools.partial(_doing, lines, job.cell))
        except ContenderDied as error:
            lines.write(kind="died", cell=job.cell, variant=error.variant, error=str(error)[:400])
            os._exit(3)  # an orderly end would wait for the GPU
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:400]}
        lines.write(kind="found", cell=job.cell, found=found)


# --- beside it ----------------------------------------------------------------------------------------------


@dataclass
class _Watch:
    """What a worker has told so far."""

    job: Job | None = None
    doing: str = ""
    died: tuple[str, str] | None = None
    since: float = 0.0


def supervise(
    jobs: Sequence[Job],
    command: Sequence[str],
    folder: Path,
    end: float,
    patience_s: float,
    found: Callable[[Job, dict[str, Any]], None],
    contender: Callable[[Job, str], str],
    heard: Callable[[dict[str, Any]], None] = lambda _: None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Until all jobs are found or lost, or it is `end` by the clock, that of time.time.

    command: starts a worker; three words are added: the jobs' file, the lines' file, when to stop.
    patience_s: without a line for so long, a worker is ended. contender: whom a job's last words name, "" if
    nobody. heard: called with every other line.
    """
    left, run = list(jobs), 0
    while left and clock() < end - START_S:
        run += 1
        lines, work = Lines(folder / f"lines{run}"), folder / f"jobs{run}.json"
        work.write_text(json.dumps([{"cell": j.cell, "without": j.without} for j in left]))
        log = folder / f"log{run}.txt"
        with log.open("w") as out:  # compilers are talkative
            process = subprocess.Popen(
                [*command, str(work), str(lines.path), str(end - 2)], stdout=out, stderr=subprocess.STDOUT
            )
        watch, before = _Watch(since=clock()), len(left)
        while True:
            running = process.poll() is None
            for line in lines.new():
                watch.since = clock()
                _hear(line, watch, left, found, heard)
            if not running:
                break
            now = clock()
            if now > end or now - watch.since > patience_s:
                process.kill()
                process.wait()
                for line in lines.new():  # what it said last
                    _hear(line, watch, left, found, heard)
                if now > end:
                    return
                watch.died = (
                    contender(watch.job, watch.doing) if watch.job else "",
                    f"no sign of life for {patience_s:.0f} s while: {watch.doing}",
                )
                break
            time.sleep(POLL_S)
        if watch.job is not None:
            variant, error = watch.died or (
                contender(watch.job, watch.doing),
                f"the process ended with {process.returncode} while: {watch.doing}",
            )
            left.remove(watch.job)
            if variant and variant not in dict(watch.job.without):
                left.insert(0, watch.job.leaving_out(variant, error))
            else:
                found(watch.job, {"error": error})
        elif len(left) == before and process.returncode:
            last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
            heard(
                {
                    "kind": "lost",
                    "error": f"the worker ended with {process.returncode} before any cell: {last}",
                }
            )
            return
        elif not process.returncode and clock() > end - START_S:
            return


def _hear(
    line: dict[str, Any],
    watch: _Watch,
    left: list[Job],
    found: Callable[[Job, dict[str, Any]], None],
    heard: Callable[[dict[str, Any]], None],
) -> None:
    match line["kind"]:
        case "begun":
            watch.job, watch.doing = next(j for j in left if j.cell == line["cell"]), ""
        case "doing":
            watch.doing = line["text"]
        case "died":
            watch.died = (line["variant"], line["error"])
        case "found":
            job = next(j for j in left if j.cell == line["cell"])
            left.remove(job)
            watch.job = None
            found(job, line["found"])
        case _:
            heard(line)


def jobs_from(path: Path) -> list[Job]:
    return [
        Job(j["cell"], tuple((variant, error) for variant, error in j["without"]))
        for j in json.loads(path.read_text())
    ]
