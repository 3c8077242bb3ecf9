"""Runs inside a pod: streams chats with the official openai client and prints one JSON line per event.

Takes one argument, a JSON object: `base_url`, `model`, `repeat`, and `chats`, each with `id`, `prompt`, `max_tokens`.
All chats run at once, each over a connection of its own, so that the Service's balancing sees every one of them.
With `repeat`, each starts again when it ends, until the line `finish` comes on standard input. When standard input
closes without it, whoever asked has gone, and everything stops. Retries are off: a failure is a failure.

Lines: {"event": "first_token", "id"} and {"event": "done", "id", "tokens", "finish_reason", "error"}.
"""

import asyncio
import json
import os
import sys
import threading
from typing import Any

from openai import AsyncOpenAI, OpenAIError


def say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def stream_chat(base_url: str, model: str, chat: dict[str, Any]) -> None:
    tokens: list[str] = []
    finish_reason: str | None = None
    error: str | None = None
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=300)
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": chat["prompt"]}],
            max_tokens=chat["max_tokens"],
            temperature=0,
            logprobs=True,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            for choice in chunk.choices:
                if choice.logprobs is not None and choice.logprobs.content:
                    if not tokens:
                        say(event="first_token", id=chat["id"])
                    tokens.extend(part.token for part in choice.logprobs.content)
                finish_reason = choice.finish_reason or finish_reason
    except OpenAIError as failure:
        error = f"{type(failure).__name__}: {failure}"
    finally:
        await client.close()
    if error is None and finish_reason is None:
        error = f"the stream ended after {len(tokens)} tokens without a finish reason"
    say(event="done", id=chat["id"], tokens=tokens, finish_reason=finish_reason, error=error)


async def main() -> None:
    job = json.loads(sys.argv[1])
    finish = asyncio.Event()

    def read_commands(loop: asyncio.AbstractEventLoop) -> None:
        if sys.stdin.readline() != "finish\n":
            os._exit(1)  # the streams' connections close with us
        loop.call_soon_threadsafe(finish.set)

    threading.Thread(target=read_commands, args=(asyncio.get_running_loop(),), daemon=True).start()

    async def run_one(chat: dict[str, Any]) -> None:
        while True:
            await stream_chat(job["base_url"], job["model"], chat)
            if not job["repeat"] or finish.is_set():
                return

    await asyncio.gather(*(run_one(chat) for chat in job["chats"]))
    await finish.wait()


if __name__ == "__main__":
    asyncio.run(main())
