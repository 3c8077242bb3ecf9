"""Runs inside a pod of the cluster: streams one chat completion from a Service and prints it as it comes.

Standard library only, because it is handed to `python3 -c` in an image that need not hold our packages.
"""

import json
import select
import sys
import time
import urllib.request

ATTACH_TIMEOUT_S = 30


def main() -> None:
    url, question = sys.argv[1:3]
    # kubectl sends a line once it is attached; what is printed before that, nobody sees.
    select.select([sys.stdin], [], [], ATTACH_TIMEOUT_S)
    body = {
        "model": json.load(urllib.request.urlopen(f"{url}/models", timeout=30))["data"][0]["id"],
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 96,
    }
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    asked = time.monotonic()
    first = None
    with urllib.request.urlopen(request, timeout=120) as stream:
        for line in stream:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if chunk.get("error"):
                sys.exit(f"\nthe server answered: {chunk['error']['message']}")
            for choice in chunk["choices"]:
                if text := choice["delta"].get("content"):
                    first = first or time.monotonic()
                    sys.stdout.write(text)
                    sys.stdout.flush()
            usage = chunk.get("usage") or {}
    ended = time.monotonic()
    tokens = usage["completion_tokens"]
    ttft_s = (first or ended) - asked
    sys.stdout.write(f"\n[{tokens} tokens in {ended - asked:.1f} s, the first after {ttft_s:.2f} s]\n")


main()
