#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: stage.sh BUILD_FOLDER STAGE     copies what a machine without this tree needs: the package with its libraries, the
# conformance suites and this folder. BUILD_FOLDER is a CMake build for the torch and Python of that machine.
set -euo pipefail
build=$1 stage=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$stage"
cp -r "$root/python/torch_fl" "$root/conformance" "$stage/"
cp -r "$build/torch_fl/." "$stage/torch_fl/"
cp -r "$root/tools/gpu" "$stage/"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
find "$stage/torch_fl" -name '*.so' -exec strip -g {} +
