"""A process that runs one CPU backend of sentence-transformers and waits for work on stdin.

    python benchmarks/cpu_backend_child.py KIND MODEL BACKEND CALIBRATION SCRATCH

KIND is bi-encoder or cross-encoder, BACKEND a key of `BACKENDS`, CALIBRATION a folder with texts in
a JSON lines file, SCRATCH a folder for exported models. This script imports nothing of this
package, so that it runs in another environment too. A line of stdin is a JSON object with
`inputs`, `batch_size` and `out`, a file for the vectors or scores, or null. The answer is the time
in seconds, then the processor time.
"""

import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch_fp32": ("torch", {}),
    "torch_bf16": ("torch", {"dtype": "bfloat16"}),
    "onnx_fp32": ("onnx", {}),
    "onnx_int8": ("onnx", {}),
    "openvino_fp32": ("openvino", {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}),
    "openvino_bf16": ("openvino", {"ov_config": {"INFERENCE_PRECISION_HINT": "bf16"}}),
    "openvino_int8": ("openvino", {}),
}


def open_backend(kind: str, model: str, name: str, calibration: str, scratch: str) -> Any:
    """Open a model in a backend; an int8 model is quantised first."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    opened: Callable[..., Any] = SentenceTransformer if kind == "bi-encoder" else CrossEncoder
    backend, options = BACKENDS[name]
    if backend == "torch":
        return opened(model, device="cpu", model_kwargs=options)
    folder = Path(scratch, name)
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("onnx", "openvino"))
    if name == "onnx_int8":
        options = {"file_name": _quantize_onnx(opened(str(folder), backend="onnx"), folder)}
    if name == "openvino_int8":
        options = {"file_name": _quantize_openvino(opened, folder, calibration)}
    return opened(str(folder), device="cpu", backend=backend, model_kwargs=options)


def _quantize_onnx(model: Any, folder: Path) -> str:
    """Quantise weights per channel and activations per tensor, for the instructions of this CPU."""
    from sentence_transformers.backend import export_dynamic_quantized_onnx_model

    flags = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    )
    if platform.machine() in ("arm64", "aarch64"):
        config = "arm64"
    else:
        config = next((n for n in ("avx512_vnni", "avx512f", "avx2") if n in flags), "avx2")
    export_dynamic_quantized_onnx_model(model, config.replace("512f", "512"), str(folder))
    return _only(folder, "onnx/*int8*.onnx")


def _quantize_openvino(opened: Callable[..., Any], folder: Path, calibration: str) -> str:
    """Quantise statically, with ranges of activations from the calibration texts."""
    from sentence_transformers.backend import export_static_quantized_openvino_model

    export_static_quantized_openvino_model(
        opened(str(folder), backend="openvino"),
        None,
        str(folder),
        dataset_name=calibration,
        dataset_config_name="default",
        dataset_split="train",
        column_name="sentence",
    )
    return _only(folder, "openvino/*qint8*.xml")


def _only(folder: Path, pattern: str) -> str:
    (path,) = folder.glob(pattern)
    return str(path.relative_to(folder))


def main() -> None:
    """Open the backend, then answer each line of stdin."""
    kind = sys.argv[1]
    model = open_backend(*sys.argv[1:])
    compute = model.encode if kind == "bi-encoder" else model.predict
    print("ready", flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        inputs = [tuple(pair) if isinstance(pair, list) else pair for pair in work["inputs"]]
        start, used = time.perf_counter(), time.process_time()
        outputs = compute(inputs, batch_size=work["batch_size"])
        elapsed, used = time.perf_counter() - start, time.process_time() - used
        if work["out"]:
            np.save(work["out"], np.asarray(outputs, dtype=np.float32))
        print("seconds", elapsed, used, flush=True)


if __name__ == "__main__":
    main()
