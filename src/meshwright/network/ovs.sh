# Open vSwitch. "netdev" is its userspace datapath, in which `set_queue` chooses nothing: there
# flows also mark packets (DSCP), and filters on the interface send marked packets to queues. A
# kernel's datapath needs neither and gets neither.

vsctl() {
    ovs-vsctl --timeout=30 "$@"
}

# Whatever versions of OpenFlow a bridge is limited to.
ofctl() {
    ovs-ofctl --timeout=30 -O OpenFlow10,OpenFlow13,OpenFlow15 "$@"
}

find_datapath() {
    vsctl --if-exists get bridge "$1" datapath_type
}

# Refuse an interface ($1) that is no port of the bridge ($2), has a QoS, or is on a bridge with
# flows of others, which ours would go before; $3: datapath, $4: number of queues.
check_ovs() {
    bridge=$(vsctl port-to-br "$1" 2>/dev/null || :)
    [ "$bridge" = "$2" ] || refuse "interface $1: must be a port of bridge $2, is of: ${bridge:-none}"
    there=$(vsctl get port "$1" qos)
    [ "$there" = "[]" ] || refuse "interface $1: must have no QoS in Open vSwitch, has $there"
    there=$(ofctl --no-stats dump-flows "$2")  # by itself: that it fails would be lost in a pipe
    there=$(fact "$there" | awk 'NF && !/^ *(cookie=0x0, )?priority=0 actions=NORMAL$/')
    [ -z "$there" ] || refuse "bridge $2: must have no flows but the default one, has$there"
    [ "$3" != netdev ] || [ "$4" -le 63 ] ||
        refuse "interface $1: the userspace datapath has at most 63 queues, the plan has $4"
}

# In bits: what the kernel's datapath needs ($2). The userspace one ($1) waits for a core between
# packets; with less than this it lost rate, with five times as much 1 MiB came 11% early.
queue_burst() {
    if [ "$1" = netdev ] && [ "$2" -lt 200000 ]; then fact 200000; else fact "$2"; fi
}

# On a bridge ($1, $2: datapath): what goes to an address ($4) goes to a queue ($3).
add_flow() {
    mark=
    [ "$2" != netdev ] || mark="mod_nw_tos:$((4 * $3)),"
    ofctl add-flow "$1" \
        "cookie=$cookie,priority=$flow_priority,ip,nw_dst=$4,actions=${mark}set_queue:$3,normal"
}

expected_flow() {
    mark=
    [ "$2" != netdev ] || mark=" marked $3"
    fact "$1 flow to $4 = set_queue:$3$mark"
}

# All flows under our cookie on a bridge ($1).
found_flows() {
    { ofctl --no-stats dump-flows "$1" "cookie=$cookie/-1" 2>/dev/null || :; } |
        awk -v head="$1" '
            function after(key) {
                if (!match($0, key "[0-9.]+")) return ""
                return substr($0, RSTART + length(key), RLENGTH - length(key))
            }
            /actions=/ {
                mark = after("mod_nw_tos:") / 4
                if (!mark) mark = after("set_field:")
                print head " flow to " after("nw_dst=") " = set_queue:" after("set_queue:") \
                    (mark ? " marked " mark : "")
            }'
}

# On an interface ($1, $2: datapath) of the userspace datapath: marks choose queues ($3 ...), and
# bare acknowledgements of TCP pass unshaped.
add_marks() {
    [ "$2" = netdev ] || return 0
    interface=$1
    shift 2
    # shellcheck disable=SC2086
    tc filter add dev "$interface" parent 1: protocol ip prio 1 u32 $acknowledgement flowid 1:
    for each; do
        tc filter add dev "$interface" parent 1: protocol ip prio 1 u32 \
            match ip tos $((4 * each)) 0xfc flowid "$(printf '1:%x' $((each + 1)))"
    done
}

expected_marks() {
    [ "$2" = netdev ] || return 0
    interface=$1
    shift 2
    fact "$interface filter $shown_acknowledgement = flowid 1:"
    for each; do
        fact "$interface filter match $(printf '00%02x0000/00fc0000 at 0 = flowid 1:%x' \
            $((4 * each)) $((each + 1)))"
    done
}

# The QoS of an interface ($1) as the database has it; what comes of it is found_shape's.
found_qos() {
    fact "$1 bridge = $(vsctl port-to-br "$1" 2>/dev/null || :)"
    qos=$(vsctl --if-exists get port "$1" qos)
    case $qos in "" | "[]") return 0 ;; esac
    fact "$1 qos = $(vsctl --bare --columns=type,other_config list qos "$qos" | tr '\n' ' ' |
        sed 's/ *$//')"
    for each in $(vsctl --bare --columns=queues list qos "$qos"); do
        fact "$1 queue ${each%%=*} = $(vsctl --bare --columns=other_config list queue "${each#*=}")"
    done
}

# Remove our QoS and queues from an interface ($1) and our flows from its bridge ($2).
restore_ovs() {
    ours=$(vsctl --bare --columns=_uuid find qos "external_ids:meshwright=\"$1\"")
    for each in $ours; do
        if [ "$(vsctl --if-exists get port "$1" qos)" = "$each" ]; then
            vsctl clear port "$1" qos
        fi
        vsctl destroy qos "$each"
    done
    ours=$(vsctl --bare --columns=_uuid find queue "external_ids:meshwright=\"$1\"")
    for each in $ours; do
        vsctl destroy queue "$each"
    done
    if vsctl br-exists "$2"; then
        ofctl del-flows "$2" "cookie=$cookie/-1"
    fi
}
