#!/bin/sh
# What mpirun takes for a remote shell: enters the host it names, and runs the command there.
host=$1
shift
init=$(cat "${0%/*}/$host.pid") || exit 1
exec nsenter --target "$init" --net --uts --ipc --mount --pid --wd="$PWD" -- /bin/sh -c "$*"
