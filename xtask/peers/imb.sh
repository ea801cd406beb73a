#!/bin/sh
# Measures a collective with the Intel MPI Benchmarks: imb.sh BLOCKS "BYTES..." COMMAND...
#
# The command runs one benchmark. This prints a JSON object per size. IMB counts bytes per block, of which a buffer of
# these sizes has BLOCKS. The time is that of the slowest rank, on average over the repetitions that IMB chooses.
set -eu
blocks=$1 sizes=$2
shift 2
lengths=$(mktemp)
trap 'rm -f "$lengths"' EXIT
for bytes in $sizes; do
    echo $((bytes / blocks)) >>"$lengths"
done
"$@" -msglen "$lengths" | awk -v blocks="$blocks" '
    # Rows have bytes, repetitions and three times. Those of a barrier have no bytes, and those of messages one time,
    # half a round trip, and a bandwidth.
    /#bytes/ && /Mbytes/ { messages = 1 }
    messages && $1 ~ /^[0-9]+$/ && NF == 4 { printf "{\"bytes\":%d,\"time_us\":{\"p50\":%s}}\n", $1, $3; fflush(); next }
    $1 ~ /^[0-9]+$/ && NF == 5 { printf "{\"bytes\":%d,\"time_us\":{\"p50\":%s}}\n", $1 * blocks, $4; fflush() }
    $1 ~ /^[0-9]+$/ && NF == 4 { printf "{\"bytes\":0,\"time_us\":{\"p50\":%s}}\n", $3; fflush() }'
