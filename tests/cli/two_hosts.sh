#!/bin/bash
# two_hosts.sh LOCKSTEP ARGS...: runs `lockstep run --nnodes 2 ARGS` on two
# hosts: network namespaces of this machine that see each other by a wire of
# their own. Prints node 0's output; 77 if namespaces can't be made.
set -uo pipefail
lockstep=$1
shift
name=ls$$
a=${name}a
b=${name}b

clean_up() {
  for host in "$a" "$b"; do ip netns del "$host" 2>/dev/null; done
  rm -f "$log" "$secret"
}
log=$(mktemp)
secret=$(mktemp)  # with mode 600
head -c 32 /dev/urandom | base64 >"$secret"
trap clean_up EXIT
{
  ip netns add "$a" && ip netns add "$b" &&
    ip link add "$a" netns "$a" type veth peer name "$b" netns "$b" &&
    ip -n "$a" addr add 10.213.0.1/24 dev "$a" &&
    ip -n "$b" addr add 10.213.0.2/24 dev "$b" &&
    ip -n "$a" link set "$a" up && ip -n "$b" link set "$b" up &&
    ip -n "$a" link set lo up && ip -n "$b" link set lo up
} 2>"$log" || {
  cat "$log" >&2
  exit 77
}

common=(run --nnodes 2 --nproc-per-node 1 --label-lines off --pin-cores off
  --master-addr 10.213.0.1 --master-port 29500 --secret-file "$secret")
ip netns exec "$b" "$lockstep" "${common[@]}" --node-rank 1 "$@" >"$log" 2>&1 &
other=$!
ip netns exec "$a" "$lockstep" "${common[@]}" --node-rank 0 "$@"
first=$?
wait "$other"
second=$?
[ "$second" -eq 0 ] || cat "$log" >&2
exit $((first > second ? first : second))
