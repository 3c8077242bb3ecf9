"""Serves workloads with OpenVINO GenAI: one workload a line on stdin, its records as one line on stdout.

Runs in OpenVINO's own environment, so it imports nothing of ours. Times are seconds after the workload arrived.
"""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found]  # in the peer's environment only
import openvino_genai as genai  # type: ignore[import-not-found]  # likewise


def build_pipeline(model: str, precision: str, num_kv_blocks: int) -> Any:
    """The pipeline as it comes, but for KV memory, prefix caching and precision, which every server gets alike."""
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = num_kv_blocks
    scheduler.enable_prefix_caching = True
    precisions = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", precisions)


def serve(pipeline: Any, requests: list[dict[str, Any]], first_id: int) -> list[dict[str, Any]]:
    """Add each request when its time has come, step while any runs, and note the time of every token."""
    start = time.perf_counter()
    waiting = sorted(requests, key=lambda request: request["arrival_s"])
    running: dict[int, Any] = {}
    records: dict[int, dict[str, Any]] = {}
    while waiting or running:
        now_s = time.perf_counter() - start
        if waiting and not running and waiting[0]["arrival_s"] > now_s:
            time.sleep(waiting[0]["arrival_s"] - now_s)
            now_s = time.perf_counter() - start
        while waiting and waiting[0]["arrival_s"] <= now_s:
            request = waiting.pop(0)
            index = request["index"]
            running[index] = pipeline.add_request(first_id + index, tokens_of(request), config_of(request))
            records[index] = record_of(request, time.perf_counter() - start)
        pipeline.step()
        collect(running, records, time.perf_counter() - start)
    return [records[request["index"]] for request in requests]


def tokens_of(request: dict[str, Any]) -> ov.Tensor:
    return ov.Tensor(np.array([request["prompt_token_ids"]], dtype=np.int64))


def config_of(request: dict[str, Any]) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = request["num_output_tokens"]
    config.ignore_eos = True
    config.do_sample = False
    return config


def record_of(request: dict[str, Any], sent_s: float) -> dict[str, Any]:
    return {
        "index": request["index"],
        "arrival_s": request["arrival_s"],
        "sent_s": sent_s,
        "event_times_s": [],
        "end_s": sent_s,
        "num_prompt_tokens": len(request["prompt_token_ids"]),
        "num_output_tokens": 0,
        "error": None,
    }


def collect(running: dict[int, Any], records: dict[int, dict[str, Any]], now_s: float) -> None:
    """Move the tokens of one step into the records, and forget who has finished."""
    for index, handle in list(running.items()):
        record = records[index]
        ended = handle.get_status() != genai_status_running()
        if handle.can_read():
            for output in handle.read().values():
                record["event_times_s"].append(now_s)
                record["num_output_tokens"] += len(output.generated_ids)
        if ended:
            record["end_s"] = now_s
            if not record["event_times_s"]:
                record["error"] = f"ended without a token: {handle.get_status()}"
            del running[index]


def genai_status_running() -> Any:
    return genai.py_openvino_genai.GenerationStatus.RUNNING


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--num-kv-blocks", type=int, required=True)
    arguments = parser.parse_args()
    pipeline = build_pipeline(arguments.model, arguments.precision, arguments.num_kv_blocks)
    answer({"ready": True})
    served = 0
    for line in sys.stdin:
        requests = json.loads(line)["requests"]
        answer({"records": serve(pipeline, requests, served)})
        served += len(requests)


def answer(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
