"""Which type of the catalogue a device is, by the name that it gives itself."""

import re

_PATTERNS = (
    ("p100", r"Tesla P100-(PCIE|SXM2)-16GB"),
    ("1080ti", r"GeForce GTX 1080 Ti"),
    ("titan-v", r"TITAN V"),
    ("v100-16", r"Tesla V100-(PCIE|SXM2|DGXS|FHHL)-16GB"),
    ("v100-32", r"Tesla V100S?-(PCIE|SXM2|SXM3|DGXS)-32GB"),
    ("t4", r"(Tesla )?T4"),
    ("rtx3070", r"GeForce RTX 3070"),
    ("rtx4080s", r"GeForce RTX 4080 SUPER"),
    ("rtx3090", r"GeForce RTX 3090"),
    ("rtx4090", r"GeForce RTX 4090"),
    ("rtx5090", r"GeForce RTX 5090"),
    ("a6000", r"RTX A6000"),
    ("a10", r"A10"),
    ("a30", r"A30"),
    ("l4", r"L4"),
    ("l40s", r"L40S"),
    ("a100-40", r"A100-(SXM4|PCIE)-40GB"),
    ("a100-80", r"A100(-SXM4-80GB| 80GB PCIe)"),
    # Cards for PCIe of these two have slower chips or memory than the SXM ones of the catalogue.
    ("h100", r"H100 80GB HBM3"),
    ("h200", r"H200"),
    # The name has the size of Grace's memory; chips with 144 GB of HBM3e say so.
    ("gh200", r"GH200 (120|480)GB"),
    ("b200", r"B200"),
    ("gb200", r"GB200"),
    ("b300", r"B300( SXM6 AC)?"),
    # ROCm gives each of a module's two dies the module's name.
    ("mi250x-gcd", r"AMD Instinct MI250X"),
    ("mi300x", r"AMD Instinct MI300X"),
    ("mi325x", r"AMD Instinct MI325X"),
)
"""Names as CUDA and ROCm report them, without NVIDIA's; the whole name has to fit, so that laptop
chips and slices of a GPU ("H100 80GB HBM3 MIG 1g.10gb") are types of their own."""


def find_device_type(name: str) -> str:
    """The catalogue's name of a device that calls itself `name`, else one made from that name."""
    short = re.sub(r"^NVIDIA\s+", "", name.strip())
    for kind, pattern in _PATTERNS:
        if re.fullmatch(pattern, short):
            return kind
    slug = re.sub(r"[^a-z0-9]+", "-", short.lower()).strip("-")
    return slug[:64].rstrip("-") or "unknown"
