"""What programs print of hosts and networks that tests make up, in the form of the real ones."""

from collections.abc import Mapping, Sequence


def topo(
    cells: Sequence[Sequence[str]],
    nics: Sequence[str] = (),
    *,
    is_underlined: bool = False,
    has_affinity: bool = True,
) -> str:
    """`nvidia-smi topo -m` of devices with these cells, the diagonal left out of account."""
    count = len(cells)
    cards = [f"NIC{place}" for place in range(len(nics))]
    head = [f"GPU{place}" for place in range(count)] + cards
    tail = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"] if has_affinity else []
    start, end = ("\x1b[4m", "\x1b[0m") if is_underlined else ("", "")
    lines = ["\t" + start + "\t".join(head + tail) + end]
    for place in range(count):
        row = [" X " if other == place else cells[place][other] for other in range(count)]
        lines.append("\t".join([f"GPU{place}", *row, *["SYS"] * len(nics)]) + "\t0-31\t0\t\tN/A")
    for place, card in enumerate(cards):
        row = [" X " if other == place else "SYS" for other in range(len(cards))]
        lines.append("\t".join([card, *["SYS"] * count, *row]))
    legend = ["", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing NVLinks", ""]
    if nics:
        legend += ["NIC Legend:", "", *(f"  {c}: {n}" for c, n in zip(cards, nics, strict=True))]
    return "\n".join(lines + legend) + "\n"


def all_alike(count: int, cell: str) -> list[list[str]]:
    """Cells of devices that are all joined alike."""
    return [[cell] * count for _ in range(count)]


def gpu_csv(products: Sequence[str], mebibytes: int, generation: int = 4) -> str:
    """`nvidia-smi --query-gpu=... --format=csv`."""
    head = "index, name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max\n"
    rows = (
        f"{place}, {product}, {mebibytes} MiB, {generation}, 16\n"
        for place, product in enumerate(products)
    )
    return head + "".join(rows)


def gpu_text(products: Sequence[str], mebibytes: int) -> str:
    """`nvidia-smi -q`, of which most is left out."""
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [f"Driver Version : 535.54.03\nAttached GPUs : {len(products)}"]
    for place, product in enumerate(products):
        lines += [
            f"GPU 00000000:{place + 1:02X}:00.0",
            f"    Product Name                          : {product}",
            "    PCI",
            f"        Bus Id                            : 00000000:{place + 1:02X}:00.0",
            "        GPU Link Info",
            "            PCIe Generation",
            "                Max                       : 5",
            "                Current                   : 1",
            "            Link Width",
            "                Max                       : 16x",
            "                Current                   : 16x",
            "    FB Memory Usage",
            f"        Total                             : {mebibytes} MiB",
            "        Reserved                          : 551 MiB",
            "    Processes                             : None",
            "",
        ]
    return "\n".join(lines)


def gpu_xml(products: Sequence[str], mebibytes: int) -> str:
    """`nvidia-smi -q -x`, of which most is left out."""
    gpus = "".join(
        f"""  <gpu id="00000000:{place:02X}:00.0">
    <product_name>{product}</product_name>
    <pci><pci_gpu_link_info>
      <pcie_gen><max_link_gen>4</max_link_gen></pcie_gen>
      <link_widths><max_link_width>16x</max_link_width></link_widths>
    </pci_gpu_link_info></pci>
    <fb_memory_usage><total>{mebibytes} MiB</total></fb_memory_usage>
  </gpu>
"""
        for place, product in enumerate(products)
    )
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
{gpus}</nvidia_smi_log>
"""


def rocm(cells: Sequence[Sequence[str]], product: str = "") -> str:
    """`rocm-smi --showtopo`, perhaps with --showproductname before it."""
    count = len(cells)
    names = [f"GPU{place}" for place in range(count)]
    lines = ["============ ROCm System Management Interface ============"]
    lines += [f"GPU[{place}]\t\t: Card Series: \t\t{product}" for place in range(count) if product]
    for title, own in (("Weight between two GPUs", "15"), ("Link Type between two GPUs", "")):
        lines += [f"=========== {title} ===========", "       " + "         ".join(names)]
        for place, name in enumerate(names):
            row = ["0" if other == place else own or cells[place][other] for other in range(count)]
            lines.append(name + "   " + "            ".join(row))
        lines.append("")
    return "\n".join([*lines, "============ End of ROCm SMI Log ============", ""])


def nccl_xml(
    count: int, links: Mapping[int, Sequence[tuple[str, int]]], nics: Sequence[int] = ()
) -> str:
    """A dump of NCCL: H100s whose links go to bus identifiers or `switch`, cards in Mbit/s."""
    gpus = []
    for place in range(count):
        lines = [
            f'        <nvlink target="{"0000:c0:00.0" if to == "switch" else to}" '
            f'count="{number}" tclass="{"0x068000" if to == "switch" else "0x030200"}"/>'
            for to, number in links.get(place, ())
        ]
        gpus += [
            f'    <pci busid="{bus(place)}" class="0x030200" vendor="0x10de" device="0x2330" '
            'link_speed="32.0 GT/s PCIe" link_width="16">',
            f'      <gpu dev="{place}" sm="90" rank="{place}" gdr="1">',
            *lines,
            "      </gpu>",
            "    </pci>",
        ]
    cards = [
        f'    <nic><net name="mlx5_{place}" dev="{place}" speed="{rate}" port="1" gdr="1"/></nic>'
        for place, rate in enumerate(nics)
    ]
    inside = "\n".join([*gpus, *cards])
    return (
        f'<system version="1">\n  <cpu numaid="0" arch="x86_64">\n{inside}\n  </cpu>\n</system>\n'
    )


def bus(place: int) -> str:
    """The bus identifier of a device in `nccl_xml`."""
    return f"0000:{place + 16:02x}:00.0"


def ibstat(cards: Mapping[str, int], down: Sequence[str] = ()) -> str:
    """`ibstat` of cards with a port of so many Gbit/s."""
    return "".join(
        f"""CA '{name}'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: {"Down" if name in down else "Active"}
\t\tPhysical state: LinkUp
\t\tRate: {rate}
\t\tBase lid: 4
\t\tLink layer: InfiniBand
"""
        for name, rate in cards.items()
    )


def ibnetdiscover(
    leaves: Mapping[str, Sequence[tuple[str, str]]], spine: str = "", speed: str = "4xNDR"
) -> str:
    """`ibnetdiscover` of leaves with their hosts and cards, each with two cables to a spine."""
    lines = ["#", "# Topology file: generated on Mon Jan  1 00:00:00 2024", "#", ""]
    guid = {name: f"{number:016x}" for number, name in enumerate([*leaves, spine], start=1)}
    for leaf, ends in leaves.items():
        lines += [f"switchguid=0x{guid[leaf]}({guid[leaf]})"]
        lines += [f'Switch\t65 "S-{guid[leaf]}"\t\t# "MF0;{leaf}:MQM9700/U1" enhanced port 0 lid 1']
        for port, (host, card) in enumerate(ends, start=1):
            other = f"{port + 1000 * int(guid[leaf], 16):016x}"
            lines.append(
                f'[{port}]\t"H-{other}"[1]({other}) \t\t# "{host} {card}" lid {port} {speed}'
            )
        for port in range(2 if spine else 0):
            lines.append(
                f'[{port + 60}]\t"S-{guid[spine]}"[{port + 1}]\t\t'
                f'# "MF0;{spine}:MQM9700/U1" lid 9 {speed}'
            )
        lines.append("")
    if spine:
        lines += [f"switchguid=0x{guid[spine]}({guid[spine]})"]
        lines += [f'Switch\t65 "S-{guid[spine]}"\t\t# "MF0;{spine}:MQM9700/U1" base port 0 lid 9']
        for leaf in leaves:
            for port in range(2):
                lines.append(
                    f'[{port + 1}]\t"S-{guid[leaf]}"[{port + 60}]\t\t'
                    f'# "MF0;{leaf}:MQM9700/U1" lid 1 {speed}'
                )
    return "\n".join([*lines, ""])


def ip_link(names: Sequence[str]) -> str:
    """`ip -j link` of these cards, the loopback and a bridge."""
    entry = '{{"ifname":"{}","flags":["UP"],"mtu":1500,"operstate":"{}","link_type":"{}"{}}}'
    entries = [entry.format("lo", "UNKNOWN", "loopback", "")]
    entries += [entry.format(name, "UP", "ether", "") for name in names]
    entries.append(entry.format("docker0", "DOWN", "ether", ',"linkinfo":{"info_kind":"bridge"}'))
    return "[" + ",".join(entries) + "]\n"


def ethtool(rates: Mapping[str, int]) -> str:
    """`ethtool` of interfaces with so many Mbit/s."""
    return "".join(
        f"""Settings for {name}:
\tSupported ports: [ FIBRE ]
\tSpeed: {rate}Mb/s
\tDuplex: Full
\tLink detected: yes
"""
        for name, rate in rates.items()
    )


def lscpu(sockets: int, cores: int) -> str:
    """`lscpu` of a host with two threads a core."""
    return f"""Architecture:            x86_64
  CPU op-mode(s):        32-bit, 64-bit
CPU(s):                  {2 * sockets * cores}
  On-line CPU(s) list:   0-{2 * sockets * cores - 1}
Vendor ID:               AuthenticAMD
  Model name:            AMD EPYC 7543 32-Core Processor
    Thread(s) per core:  2
    Core(s) per socket:  {cores}
    Socket(s):           {sockets}
"""


def nccl_tests(
    collective: str,
    ranks: Sequence[tuple[str, str]],
    rows: Sequence[tuple[int, float]],
    *,
    prefix: str = "",
) -> str:
    """A log of nccl-tests 2.13: ranks are hosts and products, rows sizes and microseconds."""
    count = len(ranks)
    factor = 2 * (count - 1) / count if collective == "all_reduce" else (count - 1) / count
    lines = [
        f"# Collective test starting: {collective}_perf",
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank} on {host:>10} device {rank:2d} [0x17] {what}"
        for rank, (host, what) in enumerate(ranks)
    ]
    lines += [
        "#       size         count      type   redop    root     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       ",
        "node1:81:92 [0] NCCL INFO Launch mode Parallel",
    ]
    for size, micros in rows:
        rate = size / micros / 1e3
        lines.append(
            f"{size:12d}  {size // 4:12d}     float     sum      -1  {micros:8.2f}  {rate:6.2f}  "
            f"{rate * factor:6.2f}      0  {micros:8.2f}  {rate:6.2f}  {rate * factor:6.2f}      0"
        )
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 85.2"]
    return "".join(f"{prefix}{line}\n" for line in lines)
