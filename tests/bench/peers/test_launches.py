from pathlib import Path

import pytest

from tidegate_bench.launch import BenchError, Server, ServerOptions, Speaks
from tidegate_bench.peers.llama_server import LlamaServer
from tidegate_bench.peers.openvino_genai import OpenvinoGenai
from tidegate_bench.peers.tidegate import Tidegate, num_blocks
from tidegate_bench.peers.vllm_cpu import VllmCpu

OPTIONS = ServerOptions(
    model=Path("/models/tiny-float32"),
    dtype="float32",
    kv_tokens=3072,
    max_model_len=1024,
    num_cpus=2,
    port=18000,
    ops_port=19000,
)

HTTP_SERVERS: list[Server] = [Tidegate(), VllmCpu(), LlamaServer(Path("llama-server"), Path("tiny.gguf"))]


def value_of(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.parametrize("server", HTTP_SERVERS, ids=lambda server: server.name)
def test_http_servers_listen_on_loopback_at_the_port_given(server: Server) -> None:
    argv = server.launch(OPTIONS).argv
    assert value_of(argv, "--host") == "127.0.0.1"
    assert value_of(argv, "--port") == "18000"


@pytest.mark.parametrize(
    ("server", "flag", "blocks"),
    [
        pytest.param(Tidegate(), "--num-kv-blocks", 192, id="16 tokens a block"),
        pytest.param(VllmCpu(), "--num-gpu-blocks-override", 24 + 1, id="128 tokens a block and the null block"),
        pytest.param(OpenvinoGenai(), "--num-kv-blocks", 96, id="32 tokens a block"),
        pytest.param(LlamaServer(Path("x"), Path("y")), "--ctx-size", 3072, id="tokens"),
    ],
)
def test_every_server_gets_the_same_tokens_of_kv_memory(server: Server, flag: str, blocks: int) -> None:
    assert value_of(server.launch(OPTIONS).argv, flag) == str(blocks)


def test_a_part_of_a_block_is_a_block() -> None:
    assert num_blocks(17, 16) == 2


@pytest.mark.parametrize("server", [Tidegate(), VllmCpu()], ids=lambda server: server.name)
def test_model_and_dtype_are_those_of_the_run(server: Server) -> None:
    argv = server.launch(OPTIONS).argv
    assert value_of(argv, "--model") == "/models/tiny-float32"
    assert value_of(argv, "--dtype") == "float32"


def test_our_own_server_tells_which_kernels_it_chose() -> None:
    assert Tidegate().launch(OPTIONS).load_url == "http://127.0.0.1:19000/load"


def test_vllm_gets_every_core() -> None:
    assert VllmCpu().launch(OPTIONS).env["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"


def test_extra_arguments_come_last_so_that_they_win() -> None:
    assert Tidegate(("--block-size", "32")).launch(OPTIONS).argv[-2:] == ("--block-size", "32")


def test_openvino_is_a_library_behind_pipes() -> None:
    launch = OpenvinoGenai().launch(OPTIONS)
    assert launch.speaks is Speaks.PIPES
    assert Path(launch.argv[2]).is_file()


def test_openvino_refuses_a_precision_it_is_not_measured_in() -> None:
    with pytest.raises(BenchError, match="float16"):
        OpenvinoGenai().install(Path("/models/tiny"), "float16")


def test_missing_gguf_names_the_option() -> None:
    with pytest.raises(BenchError, match="--llama-gguf"):
        LlamaServer(Path("llama-server"), Path("/nowhere/model.gguf")).install(Path("/models/tiny"), "float32")
