"""Turns the measurements into medians, ratios, Markdown and JSON."""

import platform
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from contenders import CONTENDERS, OURS
from generators import Measurement
from scenarios import SCENARIOS


@dataclass
class Results:
    """All that one run of the harness found.

    settings: how it was run.
    rounds: scenario, then contender, then one measurement a round.
    versions: packages of each environment.
    memory_mb: resident memory of each server after the last round.
    notes: what a reader should know besides.
    """

    settings: dict[str, Any]
    rounds: dict[str, dict[str, list[Measurement]]]
    versions: dict[str, dict[str, str]]
    memory_mb: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def invalid(self) -> list[str]:
        """Name the figures that had an error in any round."""
        return [
            f"{contender}/{scenario}"
            for scenario, contenders in self.rounds.items()
            for contender, measurements in contenders.items()
            if not is_valid(measurements)
        ]


@dataclass(frozen=True)
class Ratio:
    """How many times another server's figure ours is, by rounds."""

    median: float
    lowest: float
    highest: float


def is_valid(measurements: list[Measurement]) -> bool:
    return all(each.errors == 0 and each.complete > 0 for each in measurements)


def find_ratio(
    contenders: dict[str, list[Measurement]], other: str, compare: Callable[[Measurement, Measurement], float | None]
) -> Ratio | None:
    """Compare ours with `other`, each round with the same round; None where a figure is missing or invalid."""
    ours = contenders.get(OURS, [])
    if other == OURS or not ours or not is_valid(ours) or not is_valid(contenders[other]):
        return None
    found = [compare(mine, theirs) for mine, theirs in zip(ours, contenders[other], strict=True)]
    ratios = [ratio for ratio in found if ratio is not None]
    return Ratio(median(ratios), min(ratios), max(ratios)) if len(ratios) == len(found) else None


def compare_rates(ours: Measurement, theirs: Measurement) -> float:
    return ours.rate / theirs.rate


def compare_cpu(ours: Measurement, theirs: Measurement) -> float | None:
    return theirs.cpu_us / ours.cpu_us if ours.cpu_us and theirs.cpu_us else None


def describe_machine() -> dict[str, str]:
    return {"cpu": _cpu_model(), "system": platform.platform(), "python": _python()}


def to_markdown(results: Results) -> str:
    lines: list[str] = []
    for name, contenders in results.rounds.items():
        scenario = SCENARIOS[name]
        lines += [
            f"## {scenario.title}",
            "",
            f"| server | {scenario.unit} | p50, ms | p99, ms | ours / this (min–max of rounds) "
            "| server CPU, µs | this / ours |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [_row(other, contenders) for other in contenders]
        lines.append("")
    lines += ["## Memory after the last round", "", "| server | MB |", "|---|--:|"]
    lines += [
        f"| {CONTENDERS[name].title} | {'?' if memory is None else format(memory, '.0f')} |"
        for name, memory in results.memory_mb.items()
    ]
    lines += ["", "## Machine", ""]
    lines += [f"- {name}: {value}" for name, value in {**describe_machine(), **results.settings}.items()]
    lines += [
        f"- environment `{name}`: {', '.join(f'{package} {version}' for package, version in packages.items())}"
        for name, packages in results.versions.items()
    ]
    lines += [f"- {note}" for note in results.notes]
    return "\n".join(lines)


def to_json(results: Results) -> dict[str, Any]:
    return {
        "machine": describe_machine(),
        "settings": results.settings,
        "versions": results.versions,
        "notes": results.notes,
        "memory_mb": results.memory_mb,
        "scenarios": {
            name: {other: _figures(other, contenders) for other in contenders}
            for name, contenders in results.rounds.items()
        },
    }


def _figures(name: str, contenders: dict[str, list[Measurement]]) -> dict[str, Any]:
    measurements = contenders[name]
    ratio = find_ratio(contenders, name, compare_rates)
    by_cpu = find_ratio(contenders, name, compare_cpu)
    cpu = [each.cpu_us for each in measurements if each.cpu_us is not None]
    return {
        "valid": is_valid(measurements),
        "per_second": median(each.rate for each in measurements),
        "p50_ms": median(each.p50_ms for each in measurements),
        "p99_ms": median(each.p99_ms for each in measurements),
        "ours_to_this": None if ratio is None else asdict(ratio),
        "cpu_us": median(cpu) if cpu else None,
        "cpu_this_to_ours": None if by_cpu is None else asdict(by_cpu),
        "rounds": [{**asdict(each), "per_second": each.rate} for each in measurements],
    }


def _row(name: str, contenders: dict[str, list[Measurement]]) -> str:
    figures = _figures(name, contenders)
    title = CONTENDERS[name].title
    if not figures["valid"]:
        errors = sum(each.errors for each in contenders[name])
        return f"| {title} | **invalid: {errors} errors** | | | | | |"
    cpu = "?" if figures["cpu_us"] is None else format(figures["cpu_us"], ".0f")
    return (
        f"| {title} | {figures['per_second']:,.0f} | {figures['p50_ms']:.1f} | {figures['p99_ms']:.1f} "
        f"| {_range(figures['ours_to_this'])} | {cpu} | {_range(figures['cpu_this_to_ours'])} |"
    )


def _range(ratio: dict[str, float] | None) -> str:
    return f"{ratio['median']:.2f} ({ratio['lowest']:.2f}–{ratio['highest']:.2f})" if ratio else ""


def _python() -> str:
    """Return the version of Python and how it was built, which makes a difference of a tenth and more."""
    guided = "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))
    build = "with" if guided else "without"
    return f"{platform.python_version()}, {platform.python_compiler()}, {build} profile-guided optimization"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
