#!/usr/bin/env bash
# Runs ranks of a program on network namespaces of this machine, joined by links of a chosen rate: what a cluster with slow
# links sees, without a cluster. Needs root and iproute2. The namespaces are removed at the end, whatever happens.
#
#   bench/network.sh RANKS RATE_MBIT -- program args...      one namespace per rank, e.g.
#   bench/network.sh 2 1000 -- build/release/bin/all_reduce_bench --sizes 25 --link-mbit 1000
set -euo pipefail

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ $# -ge 4 && $3 == -- && $1 =~ ^[0-9]+$ && $2 =~ ^[0-9]+$ ]] || usage
ranks=$1 rate=$2
shift 3
[[ $(id -u) == 0 ]] || { echo "network.sh: network namespaces need root" >&2; exit 1; }
command -v ip tc >/dev/null || { echo "network.sh: iproute2 is missing (apt-get install iproute2)" >&2; exit 1; }

# A name of its own per run, so that two runs do not meet.
prefix=tw$$
cleanup() {
  local rank
  for ((rank = 0; rank < ranks; rank++)); do ip netns del "$prefix-$rank" 2>/dev/null || true; done
  ip netns del "$prefix-switch" 2>/dev/null || true
}
trap cleanup EXIT

shape() { tc -n "$1" qdisc add dev "$2" root tbf rate "${rate}mbit" burst 256kb latency 50ms; }

ip netns add "$prefix-switch"
ip -n "$prefix-switch" link add bridge0 type bridge
ip -n "$prefix-switch" link set bridge0 mtu 9000 up
for ((rank = 0; rank < ranks; rank++)); do
  host=$prefix-$rank
  ip netns add "$host"
  ip -n "$host" link set lo up
  ip -n "$prefix-switch" link add "port$rank" type veth peer name eth1 netns "$host"
  ip -n "$prefix-switch" link set "port$rank" mtu 9000 master bridge0 up
  ip -n "$host" link set eth1 mtu 9000 up
  ip -n "$host" addr add "10.77.0.$((rank + 1))/24" dev eth1
  shape "$host" eth1
  shape "$prefix-switch" "port$rank"
done

key=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
pids=()
for ((rank = 0; rank < ranks; rank++)); do
  # Namespaces share this machine's memory, so UCX must be told to use the network.
  ip netns exec "$prefix-$rank" env TIGHTWIRE_RANK=$rank TIGHTWIRE_WORLD_SIZE=$ranks TIGHTWIRE_JOB_KEY="$key" \
    TIGHTWIRE_RENDEZVOUS=tcp://10.77.0.1:29500 UCX_TLS=tcp,self UCX_NET_DEVICES=eth1 "$@" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit $status
