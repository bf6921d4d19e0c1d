"""What is here: versions, machines and knobs; the cache."""

from __future__ import annotations

import argparse

from tilegen.cli.given import print_json


def info(o: argparse.Namespace) -> int:
    import importlib.metadata
    import os
    import platform
    from dataclasses import asdict

    import tilegen
    from tilegen.arch.gpus import GPUS
    from tilegen.config import KNOBS, cache_dir
    from tilegen.errors import CompileError
    from tilegen.runtime.cxx import compiler, version
    from tilegen.targets.select import TARGETS, best_here

    try:
        found = version(compiler())
    except CompileError as error:
        found = f"none: {error}"
    versions = {}
    for name in ("torch", "sympy", "jinja2", "numpy", "cuda-python"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    data = {
        "tilegen": tilegen.__version__,
        "python": platform.python_version(),
        **versions,
        "compiler": found,
        "threads": len(os.sched_getaffinity(0)),
        "cache": str(cache_dir()),
        "targets": list(TARGETS[1:]),
        "auto": best_here(),
        "machines": {name: asdict(gpu) for name, gpu in GPUS.items()},
        "knobs": {k: os.environ.get(k, "") for k in KNOBS},
    }
    if o.json:
        print_json(data)
    else:
        for key, value in data.items():
            if key not in ("knobs", "machines"):
                print(f"{key:<12}{', '.join(value) if isinstance(value, list) else value}")
        print("machines    cpu, cpu:N (N threads), a number N (N SMs of an H200), and")
        for name, gpu in GPUS.items():
            print(f"            {name:<11}{gpu.text}")
        for key, text in KNOBS.items():
            print(f"{key}={os.environ.get(key, '')}\n            {text}")
    return 0


def cache(o: argparse.Namespace) -> int:
    from tilegen.runtime import cache as store

    if o.action == "clear":
        count = store.clear()
        print_json({"removed": count}) if o.json else print(f"removed {count} entries")
        return 0
    rows = store.entries()
    if o.json:
        print_json(
            [{"level": level, "key": key, "bytes": size, "note": note} for level, key, size, note in rows]
        )
    else:
        for level, key, size, note in rows:
            print(f"{level:<10}{key}  {size:>10,}  {note}")
        print(f"{len(rows)} entries, {sum(r[2] for r in rows):,} bytes")
    return 0
