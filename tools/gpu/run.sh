#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh STAGE OUTPUT STEP...     runs steps on a machine with an accelerator and packs logs and records
# STAGE holds torch_fl (sources and libraries), conformance and this folder (stage.sh makes it). A step is NAME:SECONDS:COMMAND,
# its log NAME.log; OUTPUT/results.tgz is renewed after each step, so that a run that is cut off loses one step.
set -u
stage=$1 output=$2
shift 2
export PYTHONPATH=$stage PYTHONUNBUFFERED=1 TORCH_DEVICE_BACKEND_AUTOLOAD=0 OUT_DIR=${RESULTS:-/tmp/results}
mkdir -p "$OUT_DIR" "$output"
# The reference's backward passes need it (accelerator_switch.cpp).
switch=$stage/gpu/libaccelerator_switch.so
if [ -f "$switch" ]; then export LD_PRELOAD=$switch; fi
cd "$stage" || exit 1
for step in "$@"; do
  name=${step%%:*} rest=${step#*:}
  limit=${rest%%:*} command=${rest#*:}
  start=$(date +%s)
  timeout -k 5 "$limit" bash -c "$command" >"$OUT_DIR/$name.log" 2>&1
  echo "== $name: exit $? after $(($(date +%s) - start)) s"
  tail -n "${TAIL:-4}" "$OUT_DIR/$name.log"
  tar czf "$output/results.tgz" -C "$OUT_DIR" .
done
