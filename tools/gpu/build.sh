#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: build.sh OUTPUT_FOLDER [PYTHON]     builds libsmall_ops.so (overhead.py) against that Python's torch, and
# libaccelerator_switch.so, to be preloaded where a native device is the reference of a backward pass.
set -euo pipefail
output=$1 python=${2:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
mkdir -p "$output"
c++ -O2 -std=c++20 -fPIC -shared -o "$output/libsmall_ops.so" "$here/small_ops.cpp" \
  -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" -L"$torch/lib" -ltorch_cpu -lc10
c++ -O2 -std=c++20 -fPIC -shared -o "$output/libaccelerator_switch.so" "$here/accelerator_switch.cpp" -ldl
