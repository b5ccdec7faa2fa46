#!/usr/bin/env bash
# Makes the environment in which the plugin's tests train for real: the newest CPU build of torch that pip lists, the
# newest megatron-core, the oldest one from 0.12 beside it (FOLDER/oldest), and Megatron Bridge's sources (FOLDER/bridge).
# Outside the lock: which versions there are is what the tests are about.
#   environment.sh FOLDER [PYTHON]
set -euo pipefail
folder=$1
python=${2:-python3}

versions() { "$python" -m pip --disable-pip-version-check index versions "$1" 2>/dev/null | sed -n 's/^Available versions: //p' | tr -d ' ' | tr ',' '\n'; }

torch=$(versions torch | grep '+cpu$' | sort -V | tail -n 1 || true)
if [ -z "$torch" ]; then
    echo "capture-environment: pip lists no +cpu version of torch here, so the plugin's tests in real training are SKIPPED" >&2
    exit 0
fi
newest=$(versions megatron-core | sort -V | tail -n 1)
oldest=$(versions megatron-core | sort -V | awk -F. '$1 > 0 || $2 >= 12' | head -n 1)
rm -rf "$folder"
"$python" -m venv "$folder.new"
pip=("$folder.new/bin/python" -m pip --disable-pip-version-check install --quiet)
"${pip[@]}" "torch==$torch" numpy "megatron-core==$newest"
"${pip[@]}" --no-deps --target "$folder.new/oldest" "megatron-core==$oldest"
"${pip[@]}" --no-deps --target "$folder.new/bridge" megatron-bridge
mv "$folder.new" "$folder"
echo "capture-environment: torch $torch, megatron-core $newest and $oldest in $folder"
