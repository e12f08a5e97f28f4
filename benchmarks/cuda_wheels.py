"""Prepare what `check_cuda.sh` carries to a machine that has torch with CUDA, but no network.

    python benchmarks/cuda_wheels.py DIR [--arch 90]

DIR gets wheels for Python 3.12 on Linux, together at most `MOST_BYTES`, and the folder
`vocabulary` with the tokenizer of all-MiniLM-L6-v2. The weights of the model are too large. Two
wheels are cut so that they take less:

- faiss-gpu keeps the device code of one architecture (90 is Hopper). It was built for CUDA 12, and
  torch brings CUDA 13. So the wheel also gets the small runtime of CUDA 12, and a library named
  libcublas.so.12 that passes calls to torch's (`cublas_forward.c`). A C compiler must be installed.
- pyarrow loses its tests, headers, and clients of Flight and S3.

The result is for this check only. It needs the Internet, or another index of packages.
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import hashlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from common import REPOSITORY

from sbert_search.models.loading.resolve import resolve_model

MOST_BYTES = 64 << 20
# Dependencies of the package that the machine has: they come with torch and sentence-transformers.
PRESENT = {
    "huggingface-hub",
    "numpy",
    "safetensors",
    "scipy",
    "sentence-transformers",
    "tokenizers",
    "torch",
}
# Dependencies of serving, PDF files and evaluation, which the check does not import.
LEFT_OUT = {"httptools", "ir-measures", "msgspec", "pypdf", "starlette", "uvicorn"}
CARRIED = (
    *("bm25s", "click", "pyarrow", "pystemmer", "rich", "sqlglot", "xxhash"),
    *("markdown-it-py", "mdurl", "pygments"),  # of rich
    *("hypothesis", "pytest", "pytest-timeout"),  # of the tests
    *("iniconfig", "packaging", "pluggy", "sortedcontainers"),  # of pytest and hypothesis
)
FAISS, RUNTIME = "faiss-gpu==1.15.1", "nvidia-cuda-runtime-cu12==12.9.79"
# Without this marker, faiss does not look for the wheels of CUDA 12.
FAISS_UNNEEDED = ("faiss/_gpu_build.py",)
PYARROW_UNNEEDED = (
    *("pyarrow/tests/*", "pyarrow/include/*", "pyarrow/src/*", "*.pyx", "*.pxi", "*.pxd"),
    *("pyarrow/libarrow_flight*", "pyarrow/_flight*", "pyarrow/libarrow_s3*", "pyarrow/_s3fs*"),
    *("pyarrow/libarrow_python*.so", "pyarrow/libarrow_python*.so.*.*"),  # copies of one library
)
FORWARD = Path(__file__).with_name("cublas_forward.c")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
TOKENIZER = ("config.json", "special_tokens_map.json", "tokenizer*.json", "vocab.txt")

_MAGIC, _HEADER, _DEVICE_CODE = 0xBA55ED50, "<IHHQ", 2


def main() -> None:
    """Download, cut and check the sizes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--arch", type=int, default=90, help="architecture of the device code")
    options = parser.parse_args()
    out: Path = options.out
    if out.exists() and any(out.iterdir()):
        parser.error(f"{out} is not empty; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wheels = Path(scratch)
        download(wheels)
        [faiss], [pyarrow] = wheels.glob("faiss_gpu-*"), wheels.glob("pyarrow-*")
        [runtime] = wheels.glob("nvidia_cuda_runtime*")
        code = cut_device_code(read(faiss, "faiss/libfaiss.so"), options.arch)
        libraries = {f"faiss_gpu.libs/{name}": data for name, data in cuda_libraries(runtime)}
        rewrite(faiss, out, FAISS_UNNEEDED, {"faiss/libfaiss.so": code, **libraries})
        rewrite(pyarrow, out, PYARROW_UNNEEDED)
        for wheel in wheels.glob("*.whl"):
            if wheel not in (faiss, pyarrow, runtime):
                shutil.copy(wheel, out)
    model, vocabulary = resolve_model(None).path, out / "vocabulary"
    vocabulary.mkdir()
    for pattern in TOKENIZER:
        for path in model.glob(pattern):
            shutil.copy(path, vocabulary)
    sizes = {path.name: path.stat().st_size for path in out.rglob("*") if path.is_file()}
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{size / 2**20:7.2f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total / 2**20:7.2f} MiB  in all")
    if total > MOST_BYTES:
        sys.exit(f"That is more than {MOST_BYTES >> 20} MiB.")


def download(folder: Path) -> None:
    """Download all wheels, in the versions of constraints.txt."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    command += ["--only-binary=:all:", "--python-version=3.12"]
    command += [f"--platform={name}" for name in PLATFORMS]
    command += ["--constraint", REPOSITORY / "constraints.txt", *CARRIED, FAISS, RUNTIME]
    subprocess.run(list(map(str, command)), check=True)


def read(wheel: Path, name: str) -> bytes:
    """Read one file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def cuda_libraries(runtime: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the libraries of CUDA 12 that faiss loads."""
    yield "libcudart.so.12", read(runtime, "nvidia/cuda_runtime/lib/libcudart.so.12")
    with tempfile.TemporaryDirectory() as scratch:
        symbols, empty, built = (Path(scratch, name) for name in ("symbols", "empty.c", "built"))
        symbols.write_text("libcublas.so.12 { global: cublas*; local: *; };\n")
        empty.write_text("static int nothing;\n")
        for name, source in {"libcublas.so.12": FORWARD, "libcublasLt.so.12": empty}.items():
            command = ["cc", "-O1", "-w", "-fPIC", "-shared", f"-Wl,-soname,{name}", "-o", built]
            command += [f"-Wl,--version-script={symbols}", source, "-ldl"]
            subprocess.run(list(map(str, command)), check=True)
            yield name, built.read_bytes()


def cut_device_code(library: bytes, arch: int) -> bytes:
    """Overwrite the device code of other architectures with zeros, which take no space in a wheel.

    The section .nv_fatbin of a library has "fat binaries", one after another. Each has a header
    and entries. An entry has a header, with its kind (1: PTX, 2: machine code), the sizes and the
    architecture, and then its code.
    """
    cut, found = bytearray(library), set()
    offset, size = section(library, b".nv_fatbin")
    at, end = offset, offset + size
    while at + struct.calcsize(_HEADER) <= end:
        magic, _, header_bytes, content_bytes = struct.unpack_from(_HEADER, library, at)
        if magic != _MAGIC:
            at += 8  # padding between two of them
            continue
        entry = at + header_bytes
        at = entry + content_bytes
        while entry < at:
            kind, _, entry_bytes, code_bytes = struct.unpack_from("<HHIQ", library, entry)
            (entry_arch,) = struct.unpack_from("<I", library, entry + 28)
            code = entry + entry_bytes
            entry = code + code_bytes
            if kind == _DEVICE_CODE:
                found.add(entry_arch)
            if (kind, entry_arch) != (_DEVICE_CODE, arch):
                cut[code:entry] = bytes(code_bytes)
    if arch not in found:
        raise SystemExit(f"The library has no code for architecture {arch}, only {sorted(found)}.")
    return bytes(cut)


def section(library: bytes, name: bytes) -> tuple[int, int]:
    """Return offset and size of a section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", library, 0x28)
    entry_bytes, count, names = struct.unpack_from("<HHH", library, 0x3A)
    headers = [
        struct.unpack_from("<IIQQQQ", library, table + number * entry_bytes)
        for number in range(count)
    ]
    for name_at, _, _, _, offset, size in headers:
        start = headers[names][4] + name_at
        if library[start : library.index(b"\0", start)] == name:
            return offset, size
    raise SystemExit(f"The library has no section {name.decode()}.")


def rewrite(
    wheel: Path, folder: Path, unneeded: tuple[str, ...], changed: Mapping[str, bytes] | None = None
) -> None:
    """Write a wheel without unneeded files, with changed or new ones, compressed by LZMA."""
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(folder / wheel.name, "w", zipfile.ZIP_LZMA) as new,
    ):
        files = {
            name: old.read(name)
            for name in old.namelist()
            if not any(fnmatch.fnmatch(name, pattern) for pattern in unneeded)
        }
        [record] = [name for name in files if name.endswith(".dist-info/RECORD")]
        files = {**files, **(changed or {})}
        del files[record]
        lines = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files.items()]
        for name, data in {**files, record: "".join([*lines, f"{record},,\n"]).encode()}.items():
            new.writestr(name, data)


def digest(data: bytes) -> str:
    """Return a hash as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
