"""A runner behind pipes that serves every request in no time at all."""

import json
import sys


def main() -> None:
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    for line in sys.stdin:
        records = [
            {
                "index": request["index"],
                "arrival_s": request["arrival_s"],
                "sent_s": request["arrival_s"],
                "event_times_s": [request["arrival_s"] + 1.0, request["arrival_s"] + 2.0],
                "end_s": request["arrival_s"] + 2.0,
                "num_prompt_tokens": len(request["prompt_token_ids"]),
                "num_output_tokens": request["num_output_tokens"],
                "error": None,
            }
            for request in json.loads(line)["requests"]
        ]
        sys.stdout.write(json.dumps({"records": records}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
