"""A kernel as files: source, plan, proof and all that a launch needs. An export is a folder that needs no
tilegen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilegen.arch.machine import Machine
from tilegen.config import write_files
from tilegen.proof.checker import Certificate
from tilegen.runtime.launch import Launch
from tilegen.schedule.moving import Ranges
from tilegen.schedule.plan import Plan
from tilegen.targets import facts, launcher

if TYPE_CHECKING:
    from tilegen.targets.cubin import CubinLibrary

CUBIN = "kernel.cubin"
WRITTEN = frozenset({"kernel.cu", "kernel.cpp", CUBIN, "launcher.cpp"})  # by one kernel or another


@dataclass(frozen=True)
class Moves:
    """The values of a size that moves that one kernel is for."""

    name: str
    ranges: Ranges

    def facts(self, launch: Launch | None) -> dict[str, Any]:
        return facts.of_ranges(self.name, self.ranges, launch)

    def __str__(self) -> str:
        return f"{self.name}_{self.ranges[0][0]}_to_{self.ranges[-1][1]}"


@dataclass(frozen=True)
class Generated:
    """One kernel: its plan, the plan's proof, its source for a target.

    target: sm_90a, sm_80 or cpu; architecture: what CUDA text is compiled for, such as sm_86, empty for C++.
    launch: what a launch is, None for C++, which is called.
    cubin: machine code, None where there was no NVRTC, as `remark` then says.
    moves: the values of a size that moves, at whose largest the plan is.
    """

    plan: Plan
    certificate: Certificate
    target: str
    architecture: str
    text: str = field(repr=False)
    source_name: str
    launch: Launch | None = field(default=None, repr=False)
    cubin: bytes | None = field(default=None, repr=False)
    remark: str = ""
    moves: Moves | None = None

    @property
    def machine(self) -> Machine:
        """That it was planned for."""
        return self.plan.machine

    @property
    def has_cubin(self) -> bool:
        return self.cubin is not None

    @property
    def facts(self) -> dict[str, Any]:
        """What stands in launch.json."""
        moving = {} if self.moves is None else {"moves": self.moves.facts(self.launch)}
        if self.launch is None:
            return {**facts.of_call(self.plan, self.target, self.source_name), **moving}
        cubin = CUBIN if self.cubin is not None else None
        return {
            **facts.of_launch(self.plan, self.target, self.architecture, self.launch, cubin),
            **moving,
        }

    def files(self) -> dict[str, str | bytes]:
        """Name -> content."""
        plan = json.dumps(self.plan.to_json(), indent=1) + "\n"
        found: dict[str, str | bytes] = {
            self.source_name: self.text,
            "plan.json": plan,
            **_record(self.certificate, self.facts),
        }
        if self.cubin is not None:
            found[CUBIN] = self.cubin
        if self.launch is not None and self.moves is None:
            found["launcher.cpp"] = launcher.text(self.plan, [launcher.Kernel(CUBIN, self.launch)])
        return found

    def export(self, folder: str | Path) -> Path:
        """Write it into a folder, which is made where it is not there, all files or none.

        A cubin of another source does not stay there, nor, where a kernel was exported before, its source for
        another target. Raises OutputError where it cannot be written.
        """
        return _export(Path(folder), self.files(), self.places)

    @property
    def places(self) -> tuple[str, ...]:
        """Folders that it writes into."""
        return ("",)


@dataclass(frozen=True)
class GeneratedLaunches:
    """Several kernels, launched one after the other on one stream; what one writes and a later one reads lies
    in one shared workspace."""

    plan: Plan
    certificate: Certificate
    launches: tuple[Generated, ...]
    moves: Moves | None = None

    @property
    def target(self) -> str:
        return self.launches[0].target

    @property
    def architecture(self) -> str:
        return self.launches[0].architecture

    @property
    def machine(self) -> Machine:
        return self.plan.machine

    @property
    def text(self) -> str:
        """The sources of all launches, one after the other."""
        return "\n".join(launch.text for launch in self.launches)

    @property
    def remark(self) -> str:
        return self.launches[0].remark

    @property
    def has_cubin(self) -> bool:
        return all(launch.has_cubin for launch in self.launches)

    @property
    def folders(self) -> tuple[str, ...]:
        """Of each launch, in order."""
        return tuple(f"{n}_{launch.plan.graph.ops[0].name}" for n, launch in enumerate(self.launches))

    @property
    def facts(self) -> dict[str, Any]:
        """What stands in launch.json: the order, and the memory that launches share."""
        programmatic = [launch.launch is not None and launch.launch.programmatic for launch in self.launches]
        told = "in each launch, as its own launch.json says"
        moving = {} if self.moves is None else {"moves": {**self.moves.facts(None), "given": told}}
        of_all = facts.of_sequence(self.plan, self.target, self.architecture, self.folders, programmatic)
        return {**of_all, **moving}

    def files(self) -> dict[str, str | bytes]:
        """Name -> content: each launch in a folder of its own, and what orders them."""
        named = list(zip(self.folders, self.launches, strict=True))
        found = {f"{name}/{file}": content for name, g in named for file, content in g.files().items()}
        kernels = [launcher.Kernel(f"{name}/{CUBIN}", g.launch) for name, g in named if g.launch is not None]
        if kernels and self.moves is None:
            found["launcher.cpp"] = launcher.text(self.plan, kernels)
        return {**found, **_record(self.certificate, self.facts)}

    def export(self, folder: str | Path) -> Path:
        """Write them into a folder, all files or none; what another source left there goes, as for one
        kernel.

        Raises OutputError where they cannot be written.
        """
        return _export(Path(folder), self.files(), self.places)

    @property
    def places(self) -> tuple[str, ...]:
        """Folders that they are written into."""
        return ("", *(f"{name}/" for name in self.folders))


@dataclass(frozen=True)
class GeneratedRegimes:
    """Kernels of a size that moves, one for each regime of it, or launches of single ops; each regime lies in
    a folder of its own."""

    regimes: tuple[Generated | GeneratedLaunches, ...]

    @property
    def plan(self) -> Plan:
        """That of the largest size."""
        return self.regimes[-1].plan

    @property
    def certificate(self) -> Certificate:
        return self.regimes[-1].certificate

    @property
    def target(self) -> str:
        return self.regimes[-1].target

    @property
    def architecture(self) -> str:
        return self.regimes[-1].architecture

    @property
    def machine(self) -> Machine:
        return self.plan.machine

    @property
    def text(self) -> str:
        """The sources of all, one after the other."""
        return "\n".join(made.text for made in self.regimes)

    @property
    def remark(self) -> str:
        return self.regimes[-1].remark

    @property
    def has_cubin(self) -> bool:
        return all(made.has_cubin for made in self.regimes)

    @property
    def facts(self) -> dict[str, Any]:
        """What stands in launch.json beside the folders: which one is for which sizes."""
        told = [{**made.facts["moves"], "folder": str(made.moves)} for made in self.regimes]
        return {"program": self.plan.program, "target": self.target, "regimes": told}

    def files(self) -> dict[str, str | bytes]:
        """Name -> content."""
        found = {f"{g.moves}/{file}": text for g in self.regimes for file, text in g.files().items()}
        return {**found, **_record(self.certificate, self.facts)}

    def export(self, folder: str | Path) -> Path:
        """Write them into a folder, all files or none; as for one kernel.

        Raises OutputError where they cannot be written.
        """
        places = [f"{g.moves}/{place}" for g in self.regimes for place in g.places]
        return _export(Path(folder), self.files(), ["", *places])


def _export(out: Path, files: Mapping[str, str | bytes], places: Sequence[str]) -> Path:
    """Write the files; take away what another source left in these places: its cubin, and where the folder is
    an export of ours all that it wrote."""
    ours = WRITTEN if (out / "launch.json").is_file() else {CUBIN}
    left = {f"{place}{name}" for place in places for name in ours} - files.keys()
    write_files(out, files)
    for name in left:
        (out / name).unlink(missing_ok=True)
    return out


def _record(certificate: Certificate, launch: Mapping[str, Any]) -> dict[str, str | bytes]:
    """The files that say what was proved, and what a launch needs."""
    return {
        "certificate.txt": certificate.text() + "\n",
        "certificate.json": json.dumps(certificate.to_dict(), indent=1, ensure_ascii=False) + "\n",
        "launch.json": json.dumps(launch, indent=1, ensure_ascii=False) + "\n",
    }


def of_library(plan: Plan, certificate: Certificate, library: CubinLibrary, launch: Launch) -> Generated:
    """A kernel that NVRTC has compiled."""
    return Generated(
        plan,
        certificate,
        library.target,
        library.architecture,
        library.source,
        library.source_name,
        launch,
        library.code,
    )
