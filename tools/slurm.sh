#!/usr/bin/env bash
# A Slurm of several nodes on this machine, for tests and for trying job scripts. Needs root.
#   tools/slurm.sh install   Debian's packages (apt)
#   tools/slurm.sh start     munged, slurmctld and a slurmd for each node; says which SLURM_CONF to export
#   tools/slurm.sh stop      ends them, by their pid files; what they wrote stays until the next start
#   tools/slurm.sh env       prints that export, for eval
# NODES (5), CPUS (4) and MEMORY in MB (4000) are what each node claims to have. Where the kernel lets us, every node is
# a network of its own with a host name of its own, so that MPI sees several hosts, and has a disk of its own of SCRATCH
# MB (8), the folder scratch of the state; NODES_AS=loopback starts all nodes on this host's name instead. All state is
# in one folder (HPCREC_SLURM); folders of different checkouts have different names, ports and subnets, so that two may
# run at once.
set -euo pipefail
cd "$(dirname "$0")/.."
number=$(($(pwd -P | cksum | cut -d' ' -f1) % 200 + 20)) # of this checkout: in the subnet, in ports and in names
state=${HPCREC_SLURM:-${TMPDIR:-/tmp}/hpcrec-slurm-$number}
nodes=${NODES:-5} cpus=${CPUS:-4} memory=${MEMORY:-4000} scratch=${SCRATCH:-8}
subnet=10.77.$number
bridge=hr$number
controller_port=$((30000 + number)) first_port=$((31000 + number * 20))
export SLURM_CONF=$state/slurm.conf

die() {
  echo "tools/slurm.sh: $*" >&2
  exit 1
}

have_slurm() {
  local program
  for program in slurmctld slurmd munged srun ip nsenter; do command -v "$program" > /dev/null || return 1; done
}

install_packages() {
  [ "$(id -u)" -eq 0 ] || die "install needs root."
  command -v apt-get > /dev/null || die "install knows apt only; this is no Debian."
  if ! have_slurm; then
    # Packages must not start their services: no policy of the machine's own is replaced.
    [ -e /usr/sbin/policy-rc.d ] || {
      printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
      chmod +x /usr/sbin/policy-rc.d
      trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    }
    export DEBIAN_FRONTEND=noninteractive
    local packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix2 iproute2 util-linux)
    apt-get install -y --no-install-recommends "${packages[@]}" ||
      { apt-get update && apt-get install -y --no-install-recommends "${packages[@]}"; }
  fi
  # The plugin for --mpi=pmix opens libpmix.so, a link that only libpmix-dev has. It has to be there before slurmd starts.
  local folder
  for folder in /usr/lib/*/pmix2/lib; do
    [ -e "$folder/libpmix.so" ] || ln -s libpmix.so.2 "$folder/libpmix.so"
  done
}

# Whether a pid file names a living process of that name. A zombie, which kill -0 still finds, is none.
alive() {
  local pid name
  pid=$(cat "$1" 2> /dev/null) && [ -n "$pid" ] && name=$(cat "/proc/$pid/comm" 2> /dev/null) || return 1
  [[ $name = $2* ]] && ! grep -q '^State:.*Z' "/proc/$pid/status" 2> /dev/null
}

write_configuration() {
  local host address name i
  host=$(hostname -s)
  address=127.0.0.1
  [ "$apart" = no ] || address=$subnet.254
  cat > "$SLURM_CONF.new" << END
ClusterName=hpcrec$number
SlurmctldHost=$host($address)
SlurmctldPort=$controller_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job starts again once its old credential is void: 121 s by default.
AuthInfo=socket=$state/munge/socket,cred_expire=5
StateSaveLocation=$state/controller
SlurmdSpoolDir=$state/spool/%n
TmpFS=$state/tmp/%n
SlurmctldPidFile=$state/run/slurmctld.pid
SlurmdPidFile=$state/run/slurmd.%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd.%n.log
# Containers have no cgroups to give away; nodes claim cores that this machine may not have.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1
MpiDefault=none
ReturnToService=1
JobRequeue=1
KillWait=5
# Until a node that does not answer is down: 300 s by default.
SlurmdTimeout=30
MinJobAge=3600
PropagateResourceLimits=NONE
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
END
  for i in $(seq 1 "$nodes"); do
    name=n$i
    local kind=memory
    [ "$i" -le 2 ] || kind=gpu
    if [ "$apart" = yes ]; then
      echo "NodeName=$name NodeHostname=$name NodeAddr=$subnet.$i Port=6818 CPUs=$cpus RealMemory=$memory Feature=$kind"
    else
      echo "NodeName=$name NodeHostname=$host NodeAddr=127.0.0.1 Port=$((first_port + i)) CPUs=$cpus" \
        "RealMemory=$memory Feature=$kind"
    fi
  done >> "$SLURM_CONF.new"
  cat >> "$SLURM_CONF.new" << END
PartitionName=batch Nodes=ALL Default=YES DefaultTime=60 MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=ALL DefaultTime=60 MaxTime=INFINITE PriorityTier=10 PreemptMode=off
END
  mv "$SLURM_CONF.new" "$SLURM_CONF"
}

# Whether this machine lets us give nodes networks and host names of their own.
can_be_apart() {
  [ "${NODES_AS:-}" != loopback ] && unshare --net --uts --mount true 2> /dev/null || return 1
  ip link show "$bridge" > /dev/null 2>&1 || ip link add "$bridge" type bridge 2> /dev/null
}

# A process that sleeps holds a node's network, host name, view of /etc/hosts, and a disk of its own that is soon full.
start_host() {
  local i=$1 pid file=$state/run/host.n$1.pid
  alive "$file" sleep && return 0
  rm -f "$file"
  # shellcheck disable=SC2016
  setsid unshare --net --uts --mount --propagation private bash -c \
    'hostname "$1"; mount --bind "$2" /etc/hosts; mount -t tmpfs -o size="$5" scratch "$4"; echo $$ > "$3.new"
    mv "$3.new" "$3"; exec sleep infinity' \
    - "n$i" "$state/hosts" "$file" "$state/scratch" "${scratch}M" < /dev/null > /dev/null 2>&1 &
  for _ in $(seq 1 100); do alive "$file" sleep && break || sleep 0.05; done
  pid=$(cat "$file")
  ip link add "$bridge-$i" type veth peer name eth0 netns "$pid"
  ip link set "$bridge-$i" master "$bridge" up
  nsenter -t "$pid" -n ip link set lo up
  nsenter -t "$pid" -n ip link set eth0 up
  nsenter -t "$pid" -n ip address add "$subnet.$i/24" dev eth0
}

start() {
  [ "$(id -u)" -eq 0 ] || die "start needs root."
  have_slurm || die "no Slurm here; first: tools/slurm.sh install"
  mkdir -p "$state"/{controller,spool,tmp,log,run,munge,scratch}
  chmod 755 "$state" "$state"/*
  local i up node=()
  apart=no
  if can_be_apart; then
    apart=yes
    ip link set "$bridge" up
    ip address replace "$subnet.254/24" dev "$bridge"
    {
      echo "127.0.0.1 localhost"
      echo "$subnet.254 $(hostname -s)"
      for i in $(seq 1 "$nodes"); do echo "$subnet.$i n$i"; done
    } > "$state/hosts"
    for i in $(seq 1 "$nodes"); do start_host "$i"; done
  fi
  write_configuration
  if ! alive "$state/run/munged.pid" munged; then
    [ -s "$state/munge/key" ] || (umask 077; head -c 1024 /dev/urandom > "$state/munge/key")
    rm -f "$state"/munge/socket*
    munged --key-file="$state/munge/key" --socket="$state/munge/socket" --pid-file="$state/run/munged.pid" \
      --log-file="$state/log/munged.log" --seed-file="$state/munge/seed"
  fi
  alive "$state/run/slurmctld.pid" slurmctld || slurmctld
  for i in $(seq 1 "$nodes"); do
    mkdir -p "$state/spool/n$i" "$state/tmp/n$i"
    [ "$apart" = no ] || node=(nsenter -t "$(cat "$state/run/host.n$i.pid")" -n -u -m --)
    alive "$state/run/slurmd.n$i.pid" slurmd || "${node[@]}" slurmd -N "n$i"
  done
  for _ in $(seq 1 300); do
    up=$(sinfo -h -p batch -N -o %t 2> /dev/null | grep -cE '^(idle|mix|alloc)$' || true)
    [ "$up" -ne "$nodes" ] || break
    sleep 0.1
  done
  sinfo -N -p batch -o '%N %t %c CPUs %m MB %f' || true
  [ "$up" -eq "$nodes" ] || die "only $up of $nodes nodes came up; see $state/log"
  echo "export SLURM_CONF=$SLURM_CONF"
}

end_process() {
  local pid file=$1 name=$2
  if alive "$file" "$name"; then
    pid=$(cat "$file")
    kill "$pid" 2> /dev/null || true
    for _ in $(seq 1 200); do alive "$file" "$name" && sleep 0.05 || break; done
    ! alive "$file" "$name" || kill -KILL "$pid" 2> /dev/null || true
  fi
  rm -f "$file"
}

# A node, with all that still runs in its network: a step that outlives its slurmd would keep its addresses.
end_host() {
  local file=$1 network pid
  if alive "$file" sleep; then
    network=$(readlink "/proc/$(cat "$file")/ns/net")
    for pid in $(find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/net' -lname "$network" 2> /dev/null | cut -d/ -f3); do
      kill -KILL "$pid" 2> /dev/null || true
    done
  fi
  rm -f "$file"
}

stop() {
  local file link
  [ -d "$state" ] || return 0
  if alive "$state/run/slurmctld.pid" slurmctld; then
    timeout 20 scancel --me 2> /dev/null || true
    for _ in $(seq 1 100); do [ -n "$(timeout 20 squeue -h -t R,CG -o %i 2> /dev/null)" ] && sleep 0.1 || break; done
  fi
  for file in "$state"/run/slurmd.*.pid; do [ ! -e "$file" ] || end_process "$file" slurmd; done
  end_process "$state/run/slurmctld.pid" slurmctld
  end_process "$state/run/munged.pid" munged
  for file in "$state"/run/host.*.pid; do [ ! -e "$file" ] || end_host "$file"; done
  for link in /sys/class/net/"$bridge"-*; do [ ! -e "$link" ] || ip link delete "${link##*/}" 2> /dev/null || true; done
  ! ip link show "$bridge" > /dev/null 2>&1 || ip link delete "$bridge"
  rm -rf "$state/controller" "$state/spool" "$state/tmp" "$state/scratch" # jobs of an earlier start would go on in the next
}

case ${1:-} in
  install) install_packages ;;
  start) start ;;
  stop) stop ;;
  env) echo "export SLURM_CONF=$SLURM_CONF" ;;
  *) die "usage: tools/slurm.sh install|start|stop|env" ;;
esac
