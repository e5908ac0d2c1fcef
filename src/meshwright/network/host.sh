# What follows is the same in every script.

say() {
    printf 'meshwright: %s\n' "$*" >&2
}

refuse() {
    say "$*"
    exit 2
}

# What is or should be there: a line "THING = HOW".
fact() {
    printf '%s\n' "$*"
}

# Refuse without a program ($1), naming its Debian package ($2).
need() {
    command -v "$1" >/dev/null 2>&1 ||
        refuse "needs the program $1, which is not installed (Debian and Ubuntu: apt-get install $2)"
}

# --- Addresses, rules, routes, settings.

# Which of the devices ($2 ...) holds an address ($1).
find_device() {
    wanted=$1
    shift
    for each; do
        case " $(ip -o -4 address show dev "$each" 2>/dev/null || :)" in
            *" inet $wanted/"* | *" inet $wanted peer "*)
                fact "$each"
                return
                ;;
        esac
    done
}

# Refuse a host whose interface ($2) or bridge does not have the address ($1); $3: which has it.
check_device() {
    ip link show dev "$2" >/dev/null 2>&1 || refuse "interface $2: is not on this host"
    [ -n "$3" ] || refuse "interface $2: must have the address $1, itself or its bridge"
    for each in "$2" "$3"; do  # one that is down takes no routes and shows no queues
        [ -n "$(ip link show dev "$each" up)" ] || refuse "interface $each: must be up"
    done
    [ -d "$settings/$3" ] || refuse "interface $3: has no settings in $settings"
}

# Refuse a routing table or rule priority ($1) that somebody uses.
check_table() {
    there=$(found_table "$1")
    [ -z "$there" ] || refuse "table and priority $1: must be free, found: $there"
}

# The rules of a priority and the routes of the table of the same number ($1).
found_table() {
    ip -4 -N rule show | awk -v table="$1" '
        $1 == table ":" { $1 = "rule " table " ="; print }'
    { ip -4 -N route show table "$1" 2>/dev/null || :; } | awk -v table="$1" '
        {
            line = "table " table " route " $1 " ="
            for (i = 2; i < NF; i++)
                if ($i == "via" || $i == "dev" || $i == "proto" || $i == "src")
                    line = line " " $i " " $(i + 1)
            print line
        }'
}

# Remove our rule and routes: table $1, address $2, protocol $3.
restore_table() {
    while ip -4 rule del from "$2/32" lookup "$1" priority "$1" protocol "$3" 2>/dev/null; do
        :
    done
    ip -4 route flush table "$1" proto "$3" 2>/dev/null || :
}

found_sysctls() {
    for each in arp_ignore arp_announce rp_filter; do
        value=
        if [ -n "$1" ] && [ -r "$settings/$1/$each" ]; then
            value=$(cat "$settings/$1/$each")
        fi
        fact "$1 $each = $value"
    done
}

# Set a device's ($1) setting ($2) to a value ($3); what it was before the first time is kept.
set_sysctl() {
    kept=$state/sysctls/$1
    mkdir -p "$kept"
    value=$(cat "$settings/$1/$2")  # not `read`: it asks byte by byte, and gets one
    [ -e "$kept/$2" ] || fact "$value" | keep "$kept/$2"
    [ "$value" = "$3" ] || fact "$3" >"$settings/$1/$2"
}

# Write a file ($1) all at once: who is killed meanwhile leaves none.
keep() {
    cat >"$1.new"
    mv "$1.new" "$1"
}

# Those of an interface that has gone, or has another name now, stay kept.
restore_sysctls() {
    gone=0
    for kept in "$state"/sysctls/*; do
        [ -d "$kept" ] || continue
        device=${kept##*/}
        if [ ! -d "$settings/$device" ]; then
            say "interface $device: is not on this host any more, its settings stay in $state"
            gone=1
            continue
        fi
        for each in "$kept"/*; do
            place=$settings/$device/${each##*/}
            [ -f "$each" ] && [ -w "$place" ] || continue
            [ "$(cat "$place")" = "$(cat "$each")" ] || cat "$each" >"$place"
        done
        rm -rf "$kept"
    done
}

# --- Queues.

# Refuse an interface ($1) with a qdisc that the kernel did not make (its own have the handle 0:):
# it would be lost.
check_shape() {
    there=$(found_shape "$1")
    [ -z "$there" ] || refuse "must be free of queues, found: $there"
}

# The qdiscs, classes and filters that an interface ($1) has, but for the kernel's own.
found_shape() {
    { tc qdisc show dev "$1" 2>/dev/null || :; } | awk -v head="$1" '
        $3 != "0:" && $2 != "ingress" && $2 != "clsact" {
            line = head " qdisc " $4 ($4 == "parent" ? " " $5 : "") " = " $2 " " $3
            for (i = 5; i < NF; i++)
                if ($i == "default") { sub(/^0x/, "", $(i + 1)); line = line " default " $(i + 1) }
            print line
        }'
    { tc class show dev "$1" 2>/dev/null || :; } | awk -v head="$1" '
        $2 == "htb" {
            line = head " class " $3 " ="
            for (i = 4; i < NF; i++)
                if ($i == "parent" || $i == "rate" || $i == "ceil") line = line " " $i " " $(i + 1)
            print line
        }'
    { tc filter show dev "$1" 2>/dev/null || :; } | awk -v head="$1" '
        function flush() { if (to != "") print head " filter" what " = " to; what = to = "" }
        $1 == "filter" {
            flush()
            if ($0 !~ / u32 /) { $1 = ""; to = $0 }
            for (i = 2; i < NF; i++) if ($i ~ /^[*]?flowid$/) to = "flowid " $(i + 1)
        }
        $1 == "match" { what = what " match " $2 " at " $4 }
        END { flush() }'
}

# Remove our root qdisc ($2: its handle) from an interface ($1), and with it classes and filters.
restore_shape() {
    if tc qdisc show dev "$1" 2>/dev/null | grep -q "^qdisc htb $2 root"; then
        tc qdisc del dev "$1" root
    fi
}

# --- Apply, verify, undo.

# A line for each thing that is not as expected; two interfaces may share a bridge, whose facts then
# come twice.
differences() {
    wanted=$(expected)
    there=$(found)
    printf '%s\n\n%s\n' "$wanted" "$there" | awk '
        function split_fact() {
            at = index($0, " = ")
            thing = substr($0, 1, at - 1)
            how = substr($0, at + 3)
        }
        $0 == "" { is_there = 1; next }
        { split_fact() }
        !is_there { things[++num_things] = thing; must[thing] = how; next }
        thing in is && is[thing] == how { next }
        !(thing in must) || thing in is { others[++num_others] = thing; hows[num_others] = how; next }
        { is[thing] = how }
        END {
            for (i = 1; i <= num_things; i++) {
                thing = things[i]
                if (!(thing in is)) print thing ": must be " must[thing] ", is missing"
                else if (is[thing] != must[thing])
                    print thing ": must be " must[thing] ", is " is[thing]
            }
            for (i = 1; i <= num_others; i++) print others[i] ": must not be there, is " hows[i]
        }'
}

is_applied() {
    [ -f "$state/configuration" ] && [ "$(cat "$state/configuration")" = "$configuration" ]
}

apply() {
    if is_applied && [ -z "$(differences)" ]; then
        say "host $host: is configured already"
        return
    fi
    # It is kept for `undo`, which standard input could not be.
    grep -qs "^configuration=$configuration\$" "$0" || refuse "must be run from its file: sh FILE"
    check_host
    undo
    check
    mkdir -p "$state"
    fact "$configuration" | keep "$state/configuration"
    keep "$state/script" <"$0"
    is_changing=1
    change
    left=$(differences)
    if [ -n "$left" ]; then
        fact "$left"
        refuse "host $host: is not as it should be after all, see above${hint:-}"
    fi
    is_changing=0
    say "host $host: configured"
}

verify() {
    left=$(differences)
    if ! is_applied; then
        left="state $state: must be of this configuration, is missing or another${left:+
$left}"
    fi
    if [ -n "$left" ]; then
        fact "$left"
        differs=1
        exit 1
    fi
    say "host $host: is as it should be"
}

# What was applied before may have been something else: its own script knows best. Without a state
# our marks still show what is ours, but only on the host that this script is for. The kept script
# asks no other: who was killed may have left it without its configuration.
undo() {
    if [ -f "$state/script" ] && ! is_applied && [ "${MESHWRIGHT_LOCKED:-}" != 1 ]; then
        MESHWRIGHT_LOCKED=1 sh "$state/script" undo
    fi
    if [ -d "$state" ] || (check_host) 2>/dev/null; then
        restore
        restore_sysctls
        if [ "$gone" = 0 ]; then rm -rf "$state"; else rm -f "$state/script" "$state/configuration"; fi
    fi
}

# All or nothing, also when something fails or somebody interrupts. That a command failed is no
# difference.
finish() {
    code=$?
    trap - EXIT
    if [ "$code" = 1 ] && [ "$differs" = 0 ]; then code=3; fi
    if [ "$is_changing" = 1 ]; then
        say "host $host: failed, what was done is undone"
        undo || say "host $host: could not be undone, see $state"
        case $code in 129 | 130 | 143) ;; *) code=3 ;; esac
    fi
    exit "$code"
}

# One at a time, in a folder that nobody else can write scripts to.
lock() {
    mkdir -p -m 755 "$states" || refuse "cannot make the folder $states"
    for each in "$states" "$state"; do
        [ ! -e "$each" ] || [ -O "$each" ] || refuse "folder $each: must belong to root"
        case $(ls -dlH "$each" 2>/dev/null) in
            ?????w* | ????????w*) refuse "folder $each: must be writable for root alone" ;;
        esac
    done
    if [ "${MESHWRIGHT_LOCKED:-}" != 1 ]; then
        exec 9<"$states"
        flock -w 60 9 || refuse "folder $states: another process has held it for 60 s"
    fi
}

main() {
    case $1 in
        apply | verify | undo) ;;
        *) refuse "must be told to apply, verify or undo, got $1" ;;
    esac
    export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
    umask 022
    states=${MESHWRIGHT_STATE:-/run/meshwright/network}
    state=$states/$host
    is_changing=0
    differs=0
    [ "$(id -u)" = 0 ] || refuse "needs root to change the network"
    programs
    lock
    trap finish EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    find_devices
    "$1"
}
