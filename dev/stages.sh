# Runs the stages of a test script one after the other and counts what passed. Scripts source it.
#
#   stage NAME KIND COMMAND...   runs a stage; KIND is the format of its output: doctest, unittest, or check (one pass
#                                or fail)
#   queue stage ...              defers a stage until the next `drain`
#   drain                        runs all deferred stages in the order of queueing, $JOBS + 1 at a time with one thread
#                                each, because a fifth of their time is waiting
#   skip NAME REASON             records a stage that cannot run here
#   require NAME REASON          the same, but with CI=true it counts as failed
#   finish                       prints the closing line; returns 1 if anything failed
#
# Each stage prints one line. Its output goes to build/test-logs/NAME.log, whose end is shown if it failed.

LOGS=build/test-logs
STAGE_LIMIT=${STAGE_LIMIT:-1800} # seconds
JOBS=${JOBS:-$(OMP_NUM_THREADS= nproc)}  # nproc follows that variable
passed=0 failed=0 skipped=0
started=$EPOCHSECONDS
mkdir -p "$LOGS"

print_stage() { printf '%-42s %8s %12s  %s\n' "$1" "$2" "$3" "$4"; }

# Sets cpu_seconds to the processor time of all commands so far, which does not grow because the machine is busy.
take_cpu_time() {
    local file=$LOGS/times.$BASHPID  # a pipe would run in another process, with other times
    times >"$file"
    cpu_seconds=$(awk -F '[ms ]+' 'NR == 2 { print 60 * $1 + $2 + 60 * $3 + $4 }' "$file")
    rm -f "$file"
}

# Turns "[doctest] test cases:  12 |  11 passed | 1 failed | 0 skipped" into "11 1 0".
count_doctest() {
    awk -F '[:|]' '/\[doctest\] test cases:/ { p += $3; f += $4; s += $5 } END { print p + 0, f + 0, s + 0 }' "$1"
}

# Turns "Ran 12 tests in 3 s" and "FAILED (failures=1, errors=1, skipped=2)" into "8 2 2".
count_unittest() {
    awk '
        function number(name) { return match($0, name "=[0-9]+") ? substr($0, RSTART + length(name) + 1) + 0 : 0 }
        /^Ran [0-9]+ tests?/ { ran += $2 }
        /^(OK|FAILED)/ { f += number("failures") + number("errors"); s += number("skipped") }
        END { print ran - f - s, f + 0, s + 0 }' "$1"
}

stage() {
    local name=$1 kind=$2
    shift 2
    local log=$LOGS/${name//[^A-Za-z0-9]/_}.log
    take_cpu_time
    local start=$EPOCHREALTIME cpu_start=$cpu_seconds code=0
    # The group's redirection also catches the shell's message about a crash.
    { timeout --kill-after=10 "$STAGE_LIMIT" "$@" </dev/null || code=$?; } >"$log" 2>&1
    local end=$EPOCHREALTIME seconds cpu p=0 f=0 s=0
    take_cpu_time
    seconds=$(awk -v a="$start" -v b="$end" 'BEGIN { printf "%.1f s", b - a }')
    cpu=$(awk -v a="$cpu_start" -v b="$cpu_seconds" 'BEGIN { printf "%.1f s cpu", b - a }')
    case "$kind" in
        doctest) read -r p f s < <(count_doctest "$log") ;;
        unittest) read -r p f s < <(count_unittest "$log") ;;
        *) ((code == 0)) && p=1 ;;
    esac
    # A crash prints no counts, and a run without tests has shown nothing. Tests whose packages are missing skip
    # themselves; with CI=true some of them must run.
    local idle=$((p == 0))
    if [[ $kind == unittest && ${CI:-} != true ]] && ((s > 0)); then idle=0; fi
    if ((f == 0 && (code != 0 || idle))); then f=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if ((f == 0)); then
        local counts=ok
        if [[ $kind != check ]]; then counts="ok, $p passed"; fi
        if ((s > 0)); then counts+=", $s skipped"; fi
        if ((p == 0)); then counts="all $s skipped"; fi
        print_stage "$name" "$seconds" "$cpu" "$counts"
        return
    fi
    local why="FAILED"
    if [[ $kind != check ]]; then why="FAILED, $f of $((p + f))"; fi
    if ((code == 124 || code == 137)); then why+=" (stopped after $STAGE_LIMIT s)"; fi
    print_stage "$name" "$seconds" "$cpu" "$why"
    echo "---- the end of $log (exit code $code)"
    tail -n 40 "$log" | cut -c -400
    echo "----"
}

queued=()
queue() { queued+=("$(printf '%q ' "$@")"); }

# Takes stages from the queue until it is empty. The process that creates a stage's directory runs it.
work_on_queue() {
    local i
    for i in "${!queued[@]}"; do
        mkdir "$LOGS/queue/$i" 2>/dev/null || continue
        passed=0 failed=0 skipped=0
        eval "${queued[i]}" >"$LOGS/queue/$i/out" 2>&1
        echo "$passed $failed $skipped" >"$LOGS/queue/$i/counts"
        cat "$LOGS/queue/$i/out"
    done
}

drain() {
    local i worker workers=() p f s
    rm -rf "$LOGS/queue"
    mkdir "$LOGS/queue"
    for ((i = 0; i <= JOBS; i++)); do
        OMP_NUM_THREADS=1 work_on_queue &
        workers+=($!)
    done
    for worker in "${workers[@]}"; do wait "$worker"; done
    for i in "${!queued[@]}"; do
        p=0 f=1 s=0  # a worker died
        if [[ -f $LOGS/queue/$i/counts ]]; then read -r p f s <"$LOGS/queue/$i/counts"; fi
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done
    queued=()
}

skip() {
    skipped=$((skipped + 1))
    print_stage "$1" - - "skipped: $2"
}

require() {
    if [[ ${CI:-} != true ]]; then
        skip "$1" "$2"
        return
    fi
    failed=$((failed + 1))
    print_stage "$1" - - "FAILED: $2 (required with CI=true)"
}

finish() {
    local seconds=$((EPOCHSECONDS - started))
    echo "after $((seconds / 60)) min $((seconds % 60)) s"
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}
