#!/usr/bin/env bash
# testbed/fuzz.sh   lets libFuzzer loose on every parser of outside text (fuzz/parsers), a while each
#   TARGET=cron        only that one (a name from fuzz/fuzz_targets, or several with spaces between)
#   SECONDS_EACH=60    how long each; default 20
#   INPUT=FILE         no search: tries that one input on TARGET, as the report of a crash says
# Starts from fuzz/corpus, and from what earlier runs found. What it finds goes to the cache, never into the checkout: inputs
# that reach new code to found/TARGET, inputs that break a property to crashes/TARGET.
#
# Stable Rust does: the coverage that libFuzzer needs comes from flags of LLVM, and only the sanitizers ask for nightly.
# They look for memory errors, and Chronos forbids unsafe code. Without cfg(fuzzing), because some crates weaken their
# checks under it, and what ships is what should be tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. testbed/lib.sh

CARGO_FUZZ=0.13.2
: "${CARGO_TARGET_DIR:?make sets it}"
seconds=${SECONDS_EACH:-20}
cargo_fuzz=$TESTBED_CACHE/cargo-fuzz-$CARGO_FUZZ
out=$TESTBED_CACHE/fuzz

read -ra targets <<<"${TARGET:-}"
if [ ${#targets[@]} = 0 ]; then
  for file in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
for target in "${targets[@]}"; do
  [ -e "fuzz/fuzz_targets/$target.rs" ] || die "no target '$target': see fuzz/fuzz_targets"
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "SECONDS_EACH is '$seconds': a whole number of seconds expected"
if [ -n "${INPUT-}" ]; then
  [ ${#targets[@]} = 1 ] || die "INPUT needs the TARGET to try it on"
  [ -f "$INPUT" ] || die "no file $INPUT"
fi

mkdir -p "$TESTBED_CACHE"
exec 8>"$TESTBED_CACHE/.cargo-fuzz.lock"; flock 8
if [ ! -x "$cargo_fuzz/bin/cargo-fuzz" ]; then
  say "installing cargo-fuzz $CARGO_FUZZ into the cache (about 1 min)"
  env -u CARGO_TARGET_DIR cargo install cargo-fuzz --quiet --locked --version "$CARGO_FUZZ" --root "$cargo_fuzz" >&2
fi
exec 8>&-
export PATH=$cargo_fuzz/bin:$PATH

# A target directory of its own: every dependency is built anew, with coverage. cargo-fuzz knows no --locked.
export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/fuzz
testbed/cargo.sh tree --locked --manifest-path fuzz/Cargo.toml >/dev/null || die "fuzz/Cargo.lock is stale: run make generate"
say "building (cold: about 6 min; after an edit of Chronos: 1 to 3; again: seconds)"
one=
[ ${#targets[@]} != 1 ] || one=${targets[0]}               # without a name cargo-fuzz builds all, in one go
testbed/cargo.sh fuzz build --sanitizer none --no-cfg-fuzzing ${one:+"$one"} >&2
bin=$CARGO_TARGET_DIR/$(rustc -vV | sed -n 's/^host: //p')/release

if [ -n "${INPUT-}" ]; then
  "$bin/${targets[0]}" "$INPUT"
  echo "${targets[0]}: $INPUT breaks nothing"
  exit
fi

stat() { sed -n "s/^stat::$1: *//p" "$2" | tail -n 1; }      # NAME LOG: one of the numbers libFuzzer ends with

fuzz() { # TARGET: one line on stdout; false when something broke
  local target=$1 log crash status=0 runs cov
  mkdir -p "$out/found/$target" "$out/crashes/$target"
  log=$out/$target.log
  # What is found goes to the first directory, the others are only read. An input that takes 10 s is a finding too.
  RUST_BACKTRACE=0 "$bin/$target" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$out/crashes/$target/" "$out/found/$target" "fuzz/corpus/$target" >"$log" 2>&1 </dev/null || status=$?
  runs=$(stat number_of_executed_units "$log")
  cov=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  printf '%-16s %9s runs, %7s/s, %5s edges, %5s new inputs, ' "$target" "${runs:-no}" \
    "$(stat average_exec_per_sec "$log")" "${cov:-no}" "$(stat new_units_added "$log")"
  if [ "$status" = 0 ]; then echo "nothing broke"; return; fi
  echo "BROKE"
  crash=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  {
    sed -n '/panicked at/,/^note:/p; /^ERROR: libFuzzer/p; /^SUMMARY/p' "$log" | head -n 12 | cut -c 1-2000 | sed 's/^/    /'
    if [ -n "$crash" ]; then
      echo "    input:  $crash"
      echo "    again:  make fuzz TARGET=$target INPUT=$crash"
      echo "    once it is mended, keep the input under a telling name in fuzz/corpus/$target/"
    fi
    echo "    log:    $log"
  } >&2
  return 1
}

say "fuzzing ${#targets[@]} targets, $seconds s each; logs and findings: $out"
broken=()
for target in "${targets[@]}"; do fuzz "$target" || broken+=("$target"); done
[ ${#broken[@]} = 0 ] || die "broke: ${broken[*]}"
