"""What serves requests once the model is there. Slow to import (FastAPI, uvicorn, Jinja), so `pod.py` does it late."""

import time

from tidegate_server.api.generation import Service
from tidegate_server.api.http_server import HttpServer
from tidegate_server.api.routes import ApiState, build_app
from tidegate_server.api.sampling import Limits
from tidegate_server.engine.client import EngineClient
from tidegate_server.engine.messages import EngineReady
from tidegate_server.metrics import ServerMetrics
from tidegate_server.text.model_text import ModelText, load_model_text

__all__ = ["ApiState", "HttpServer", "build_app", "load_model_text", "make_service"]


def make_service(
    model_name: str, engine: EngineClient, text: ModelText, ready: EngineReady, metrics: ServerMetrics
) -> Service:
    """The parts of a loaded model as the routes use them."""
    return Service(
        engine=engine,
        tokenizer=text.tokenizer,
        template=text.template,
        limits=Limits(
            # Told apart, the model's context and the cache: a request that does not fit hears which of them to change.
            max_model_len=ready.lowered_from or ready.max_model_len,
            kv_tokens=ready.num_kv_blocks * ready.block_size,
            vocab_size=ready.vocab_size,
            eos_token_ids=ready.eos_token_ids,
        ),
        model_name=model_name,
        created=int(time.time()),
        metrics=metrics,
    )
