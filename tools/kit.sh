# What the scripts have in common that verify kvlane on a machine without Go. They source it; `make hardware-kit` puts it beside
# them and the binaries. The script has set -euo pipefail, and budget: its seconds for everything.
# shellcheck shell=bash

failed=0

# need BINARY...: finds the folder of the binaries, kit.
need() {
	local binary
	kit=$(cd "$(dirname "$0")" && pwd)
	[[ -x $kit/kvlane ]] || kit=$kit/../bin/hardware
	for binary; do
		if [[ ! -x $kit/$binary ]]; then
			echo "$0: $kit/$binary is missing: 'make hardware-kit' builds it" >&2
			exit 2
		fi
	done
}

# output FOLDER SUMMARY: makes the folder, out, whose file of that name say appends to, and another, work, that goes when the
# script ends. A GPU's profile is measured here and now, and nothing is left behind.
output() {
	mkdir -p "$1"
	out=$(cd "$1" && pwd)
	summary=$out/$2
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	export XDG_CACHE_HOME=$work/cache
}

say() { printf '%s\n' "$*" | tee -a "$summary"; }

# gpu says which there is, if the driver's tool is there.
gpu() {
	if command -v nvidia-smi >/dev/null; then
		nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader 2>&1 | tee -a "$summary" || true
	fi
}

# part NAME SECONDS FILE COMMAND...: runs a command within its time and what is left of the whole, appends it and what it
# prints to a file, and notes how it ended.
part() {
	local name=$1 limit=$2 file=$out/$3 start=$SECONDS code=0 result=ok left=$((budget - SECONDS))
	shift 3
	((limit <= left)) || limit=$((left > 1 ? left : 1))
	printf '$ %s\n' "$(basename "$1") ${*:2}" >>"$file"
	timeout --kill-after=5 "$limit" "$@" >>"$file" 2>&1 || code=$?
	case $code in
	0) ;;
	124 | 137) result="FAILED: longer than $limit s" ;;
	*) result="FAILED: exit code $code" ;;
	esac
	((code == 0)) || failed=1
	say "$(printf '%-34s %4d s  %s' "$name" $((SECONDS - start)) "$result")"
	((code == 0)) || tail -n 5 "$file" | sed 's/^/    /' | tee -a "$summary"
	return 0
}

# tally LOG: says how many of its tests passed.
tally() {
	say "    $(grep -cE '^ *--- PASS' "$1" || true) passed, $(grep -cE '^ *--- FAIL' "$1" || true) failed, $(grep -cE '^ *--- SKIP' "$1" || true) skipped"
}

# finish says how all ended, and ends with exit code 1 if a part failed.
finish() {
	say ""
	say "$([[ $failed == 0 ]] && echo "nothing failed" || echo "SOMETHING FAILED"), $SECONDS s in all"
	exit "$failed"
}
