#!/usr/bin/env bash
# Runs ranks of a program on network namespaces of this machine, joined by links of a chosen rate: what a cluster with slow
# links sees, without a cluster. Needs root and iproute2. The namespaces are removed at the end, whatever happens.
#
#   bench/network.sh RANKS RATE_MBIT -- program args...      one namespace per rank, e.g.
#   bench/network.sh 2 1000 -- build/release/bin/all_reduce_bench --sizes 25 --link-mbit 1000
#   bench/network.sh --per-node 2 4 1000 -- program ...      nodes of two ranks, which share the link of their namespace
#                                                            and reach each other through memory, but nobody else
#   bench/network.sh --mpirun 2 1000 -- program ...          one MPI rank per namespace, Open MPI over the link as well
set -euo pipefail

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
per_node=1 mpirun=no
if [[ ${1-} == --per-node ]]; then
  [[ ${2-} =~ ^[1-9][0-9]*$ ]] || usage
  per_node=$2
  shift 2
elif [[ ${1-} == --mpirun ]]; then
  mpirun=yes
  shift
fi
[[ $# -ge 4 && $3 == -- && $1 =~ ^[1-9][0-9]*$ && $2 =~ ^[1-9][0-9]*$ ]] || usage
ranks=$1 rate=$2
((ranks % per_node == 0)) || usage
nodes=$((ranks / per_node))
shift 3
[[ $(id -u) == 0 ]] || { echo "network.sh: network namespaces need root" >&2; exit 1; }
command -v ip tc >/dev/null || { echo "network.sh: iproute2 is missing (apt-get install iproute2)" >&2; exit 1; }

# A name of its own per run, so that two runs do not meet.
prefix=tw$$
pids=()
cleanup() {
  local node
  ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true  # in the background they do not hear of Ctrl-C
  wait
  for ((node = 0; node < nodes; node++)); do ip netns del "$prefix-$node" 2>/dev/null || true; done
  ip netns del "$prefix-switch" 2>/dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT
scratch=$(mktemp -d)

# What goes through at once after a pause: a millisecond's worth, or small messages would find no slow link at all; but no more
# than 256 KiB, and enough for a few packets.
burst=$((rate * 125))
((burst >= 20000)) || burst=20000
((burst <= 262144)) || burst=262144
shape() { tc -n "$1" qdisc add dev "$2" root tbf rate "${rate}mbit" burst "${burst}b" latency 50ms; }

ip netns add "$prefix-switch"
ip -n "$prefix-switch" link add bridge0 type bridge
ip -n "$prefix-switch" link set bridge0 mtu 9000 up
for ((node = 0; node < nodes; node++)); do
  host=$prefix-$node
  ip netns add "$host"
  ip -n "$host" link set lo up
  ip -n "$prefix-switch" link add "port$node" type veth peer name eth1 netns "$host"
  ip -n "$prefix-switch" link set "port$node" mtu 9000 master bridge0 up
  ip -n "$host" link set eth1 mtu 9000 up
  ip -n "$host" addr add "10.77.0.$((node + 1))/24" dev eth1
  shape "$host" eth1
  shape "$prefix-switch" "port$node"
done

key=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
export TIGHTWIRE_WORLD_SIZE=$ranks TIGHTWIRE_JOB_KEY=$key TIGHTWIRE_RENDEZVOUS=tcp://10.77.0.1:29500 UCX_NET_DEVICES=eth1
if [[ $mpirun == yes ]]; then
  # Open MPI takes namespaces for machines if it finds a name and a remote shell for each.
  cat >"$scratch/remote_shell" <<'SHELL'
#!/usr/bin/env bash
host=$1
shift
exec ip netns exec "$NETWORK_PREFIX-$((${host##*.} - 1))" unshare --uts bash -c 'hostname "$0"; eval "$1"' "node-${host##*.}" "$*"
SHELL
  chmod +x "$scratch/remote_shell"
  export NETWORK_PREFIX=$prefix
  hosts=$(for ((node = 1; node <= nodes; node++)); do echo "10.77.0.$node:1"; done | paste -sd,)
  # mpirun's variables name rank and world size; the meeting point and the key are ours.
  exports=(-x TIGHTWIRE_JOB_KEY -x TIGHTWIRE_RENDEZVOUS -x UCX_NET_DEVICES -x UCX_TLS=tcp,self)
  unset TIGHTWIRE_WORLD_SIZE
  "$scratch/remote_shell" 10.77.0.1 "$(printf '%q ' mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent "$scratch/remote_shell" \
    --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth1 --mca oob_tcp_if_include eth1 -H "$hosts" -np "$nodes" \
    "${exports[@]}" "$@")"
  exit
fi
for ((node = 0; node < nodes; node++)); do
  if ((per_node == 1)); then
    # Namespaces share this machine's memory, so UCX must be told to use the network.
    ip netns exec "$prefix-$node" env TIGHTWIRE_RANK=$node UCX_TLS=tcp,self "$@" &
  else
    # Processes of other nodes are out of sight, and so is their memory.
    # shellcheck disable=SC2016
    ip netns exec "$prefix-$node" unshare --pid --ipc --mount-proc --fork --kill-child bash -c '
      mount -t tmpfs tmpfs /dev/shm
      first=$1 count=$2 status=0 pids=()
      shift 2
      for ((i = 0; i < count; i++)); do TIGHTWIRE_RANK=$((first + i)) "$@" & pids+=($!); done
      for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
      exit $status' node $((node * per_node)) "$per_node" "$@" &
  fi
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit $status
