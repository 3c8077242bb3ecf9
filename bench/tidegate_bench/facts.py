"""What stands above every table: the machine, the versions, the command; and whether others used the machine."""

from collections.abc import Iterator, Mapping

from tidegate_bench.machine import CpuShare, Machine

NOISY_SHARE = 0.05  # of the CPUs, used by others or stolen: from here on a number is not one to quote
GB = 1e9
MB = 1e6


def facts(date: str, command: str, machine: Machine, versions: Mapping[str, str]) -> Iterator[str]:
    """One line of a list each."""
    yield f"- command: `{command}`"
    yield f"- date: {date}"
    yield f"- machine: {machine.cpu}, {machine.num_cpus} CPUs, {machine.memory_bytes / GB:.0f} GB"
    yield f"- system: Linux {machine.kernel}, Python {machine.python}"
    yield f"- instruction sets: {' '.join(machine.isa) or 'none of those that matter'}"
    if versions:
        yield f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}"


def is_noisy(share: CpuShare) -> bool:
    """Whether others had so much of the CPUs that the numbers are not ones to quote."""
    return max(share.foreign, share.steal) > NOISY_SHARE


def disturbed_sentence(num_disturbed: int, num_measured: int) -> str:
    """What a report says of measurements that others disturbed."""
    return (
        f"**{num_disturbed} of {num_measured} measurements were disturbed**: others used, or the hypervisor took, "
        f"more than {NOISY_SHARE:.0%} of the CPUs. Repeat on a quiet machine before quoting a number."
    )
