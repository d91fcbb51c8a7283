#!/bin/sh
# Compiles the kernels to PTX, for every GPU from compute capability 7.0 on and every driver since CUDA 11.
# With -check it only compares, and fails if the committed file is not what the source gives.
# Needs clang 16 (Debian: clang-16) and nothing of CUDA's. CLANG names another binary of that version; another version
# numbers registers and labels differently.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-16}
case $("$clang" --version | head -n 1) in
*"version 16."*) ;;
*)
    echo "generate.sh: $clang is not clang 16" >&2
    exit 1
    ;;
esac
out=$(mktemp)
trap 'rm -f "$out"' EXIT
"$clang" -x cuda -nocudainc -nocudalib --cuda-device-only --cuda-gpu-arch=sm_70 \
    -Xclang -target-feature -Xclang +ptx70 -O3 -Wall -Wextra -Werror -S -o "$out" kvlane.cu
if [ "${1:-}" != -check ]; then
    cat "$out" >kvlane.ptx
elif ! cmp -s "$out" kvlane.ptx; then
    echo "generate.sh: kvlane.ptx is not what kvlane.cu compiles to: run generate.sh and commit" >&2
    exit 1
fi
