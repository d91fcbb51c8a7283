#!/bin/sh
# Compiles the kernels to PTX: kvlane.cu for every GPU from compute capability 7.0 on and every driver since CUDA 11,
# bulk.cu for 9.0 and drivers since CUDA 12.
# With -check it only compares, and fails if the committed files are not what the source gives.
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

# compile NAME ARCH CLANG'S-PTX-VERSION PTX-VERSION. clang 16 knows PTX up to 7.8; what is newer is in inline assembly, and
# the version that it needs is put in afterwards.
compile() {
    "$clang" -x cuda -nocudainc -nocudalib --cuda-device-only --cuda-gpu-arch="$2" \
        -Xclang -target-feature -Xclang +ptx"$3" -O3 -Wall -Wextra -Werror -S -o "$out" "$1.cu"
    sed -i "s/^\.version .*/.version $4/" "$out"
    if [ "$check" = 0 ]; then
        cat "$out" >"$1.ptx"
    elif ! cmp -s "$out" "$1.ptx"; then
        echo "generate.sh: $1.ptx is not what $1.cu compiles to: run generate.sh and commit" >&2
        exit 1
    fi
}

check=0
[ "${1:-}" != -check ] || check=1
compile kvlane sm_70 70 7.0
compile bulk sm_90 78 8.0
