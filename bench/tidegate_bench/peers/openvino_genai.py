"""OpenVINO GenAI's continuous batching: a library, so no HTTP stands between it and the load."""

import subprocess
from pathlib import Path

from tidegate_bench.launch import BenchError, Launch, ServerOptions, Speaks
from tidegate_bench.venv import cache_folder, ensure_venv, installed_version

VERSION = "2026.4.1"
BLOCK_SIZE = 32  # fixed by its CPU plugin
PRECISIONS = {"float32": ("fp32", "f32"), "bfloat16": ("fp16", "bf16")}  # of the converted weights, of arithmetic


class OpenvinoGenai:
    """`ContinuousBatchingPipeline` behind a runner of ours that feeds it and notes when each token came."""

    name = "openvino-genai"

    def install(self, model: Path, dtype: str) -> str:
        if dtype not in PRECISIONS:
            raise BenchError(f"--dtype {dtype}: {self.name} is measured in {' or '.join(PRECISIONS)}")
        python = ensure_venv(self.name, (f"openvino-genai=={VERSION}", "optimum-intel[openvino]"))
        self._convert(model, dtype, python)
        return installed_version(python, "openvino-genai")

    def launch(self, options: ServerOptions) -> Launch:
        return Launch(
            argv=(
                str(self._python),
                "-P",  # or the runner would find this file in its own folder when it imports the library
                str(Path(__file__).with_name("openvino_runner.py")),
                "--model",
                str(self._converted(options.model, options.dtype)),
                "--precision",
                PRECISIONS[options.dtype][1],
                "--num-kv-blocks",
                str(-(-options.kv_tokens // BLOCK_SIZE)),
            ),
            speaks=Speaks.PIPES,
        )

    @property
    def _python(self) -> Path:
        return cache_folder() / self.name / "venv" / "bin" / "python"

    def _converted(self, model: Path, dtype: str) -> Path:
        return cache_folder() / "models" / f"{model.name}-openvino-{PRECISIONS[dtype][0]}"

    def _convert(self, model: Path, dtype: str, python: Path) -> None:
        folder = self._converted(model, dtype)
        if (folder / "openvino_model.bin").exists():
            return
        unfinished = folder.with_name(folder.name + ".unfinished")
        command = ["export", "openvino", "--model", str(model), "--task", "text-generation-with-past"]
        try:
            subprocess.run(
                [
                    str(python.with_name("optimum-cli")),
                    *command,
                    "--weight-format",
                    PRECISIONS[dtype][0],
                    str(unfinished),
                ],
                check=True,
                capture_output=True,
                text=True,
            )
        except subprocess.CalledProcessError as failure:
            raise BenchError(f"optimum-cli could not convert {model}: {failure.stderr[-800:]}") from None
        unfinished.rename(folder)
