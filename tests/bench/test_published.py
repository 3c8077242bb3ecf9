from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.comparisons import comparison, run, start, summary
from tests.bench.engine.runs import engine_run, long_prompt, overload
from tests.bench.kernels.runs import kernel_run, time_of
from tests.bench.limits.runs import confined, limits_run
from tidegate_bench import published
from tidegate_bench.launch import BenchError
from tidegate_bench.published import NONE_YET, keep, markers, rendered, to_json, write_page

PAGE = "# Speed\n\n" + "\n\nProse.\n\n".join(
    "{}\n\nold\n\n{}".format(*markers(kind)) for kind in ("workloads", "kernels", "limits", "engine")
)
WORKLOADS = comparison(
    run("tidegate", 0, summary()), run("other", 0, summary(), None), starts=(start("tidegate", 3.0),)
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def kept(results: Path, *texts: str) -> list[str]:
    files = []
    for index, text in enumerate(texts):
        files.append(results.with_name(f"{index}.json"))
        files[-1].write_text(text)
    return [file.name for file in keep(files, results)]


def test_a_result_is_kept_under_its_kind_and_machine(results: Path) -> None:
    runs = (WORKLOADS, kernel_run(time_of("qkv 4 → 8")), limits_run(confined()), engine_run())
    names = kept(results, *(to_json(run_) for run_ in runs))
    assert names == ["workloads-avx2-float32.json", "kernels-avx2.json", "limits-avx2.json", "engine-avx2.json"]


def test_every_kind_of_result_is_read_back_as_it_was(results: Path) -> None:
    engine = engine_run(overload("tail"), long_prompts=[long_prompt(2.0, 0.2)])
    for run_ in (WORKLOADS, kernel_run(time_of("qkv 4 → 8")), limits_run(confined(), ready_s=(5.0,)), engine):
        [name] = kept(results, to_json(run_))
        assert (results / name).read_text() == to_json(run_)


def test_a_later_result_takes_the_place_of_an_earlier_one(results: Path) -> None:
    kept(results, to_json(limits_run(confined(tokens_per_s=10.0))), to_json(limits_run(confined(tokens_per_s=77.0))))
    text = rendered(PAGE, results)
    assert "77.0" in text
    assert "10.0" not in text


def test_each_section_is_written_anew_and_the_rest_of_the_page_stays(results: Path, tmp_path: Path) -> None:
    kept(results, to_json(WORKLOADS), to_json(kernel_run(time_of("qkv 4 → 8"))))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    write_page(results, page)
    text = page.read_text()
    assert text.startswith("# Speed\n")
    assert text.count("Prose.") == 3
    assert "old" not in text
    assert "### Some CPU, float32\n" in text
    assert "qkv 4 → 8" in text
    assert NONE_YET in text.split(markers("limits")[0])[1]
    write_page(results, page)
    assert page.read_text() == text


def test_two_machines_stand_one_after_the_other(results: Path) -> None:
    other = replace(kernel_run(time_of("qkv 4 → 8")), isa="avx512")
    kept(results, to_json(other), to_json(kernel_run(time_of("qkv 4 → 8"))))
    assert rendered(PAGE, results).index("Some CPU, avx2") < rendered(PAGE, results).index("Some CPU, avx512")


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "weather"}', '{"kind": "limits"}', "[1]"])
def test_a_file_that_is_no_result_is_named(results: Path, text: str) -> None:
    with pytest.raises(BenchError, match=r"0\.json is no result"):
        kept(results, text)


def test_a_page_without_a_section_is_refused(results: Path) -> None:
    with pytest.raises(BenchError, match="0 sections"):
        rendered("# Speed\n", results)


def test_the_page_in_docs_is_what_the_kept_results_give() -> None:
    text = published.PAGE.read_text()
    assert rendered(text, published.RESULTS) == text, "run: python -m tidegate_bench report"
