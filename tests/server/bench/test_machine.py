from pathlib import Path

from tidegate_server.bench.machine import describe_machine, software_versions


def test_a_machine_is_told_from_proc(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A Fast One\n")
    (tmp_path / "meminfo").write_text("MemTotal:       2048 kB\n")
    gpu = tmp_path / "driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 5\n")
    machine = describe_machine(tmp_path)
    assert (machine.cpu, machine.memory_bytes, machine.gpus) == ("A Fast One", 2048 * 1024, ("NVIDIA H200",))
    assert machine.num_cpus >= 1


def test_a_machine_that_tells_nothing_is_still_described(tmp_path: Path) -> None:
    machine = describe_machine(tmp_path)
    assert (machine.memory_bytes, machine.gpus) == (0, ())
    assert machine.cpu


def test_what_computes_has_a_version() -> None:
    assert {"python", "torch", "numpy"} <= software_versions().keys()
