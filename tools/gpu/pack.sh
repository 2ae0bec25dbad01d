#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pack.sh BUILD OUT: copies from a build tree (its torch_fl folder) what tools/gpu/driver_suite.py needs on a machine
# without a compiler, without symbols for debugging. A machine with an older C library needs a build made there.
set -eu
build=$1
out=$2
mkdir -p "$out/bin" "$out/lib/drivers"
strip -g -o "$out/bin/torch_fl_driver_suite" "$build/bin/torch_fl_driver_suite"
strip -g -o "$out/lib/libtorch_fl_runtime.so" "$build/lib/libtorch_fl_runtime.so"
for driver in "$build"/lib/drivers/*.so; do
  strip -g -o "$out/lib/drivers/$(basename "$driver")" "$driver"
done
du -sh "$out"
