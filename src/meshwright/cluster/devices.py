"""Device types as their makers describe them.

Peaks are dense (no sparsity) with fp32 accumulation where the sheet distinguishes, at boost
clocks; a precision without its own rate is left out and runs as fp32 does. Where sheets of GeForce
and RTX cards have no fp64, it is 1/64 of fp32, as the white papers of their chips say. Memory is
what CUDA or ROCm report as total where known, which is below the number on the box because the
driver keeps some; otherwise the number on the box (TPUs, Gaudi).

`source` names the sheet that states a figure. Those of the TPU v5e and v5p were read in their
maker's pages, except int8 of the v5p; those of the other types added in November 2026 in pages
that quote the sheets, or from memory, and not in the sheets themselves. Totals of memory of the
RTX 4090 and 5090 are from error messages of these cards; those of the L4, L40S, A10, A6000, GH200,
GB200 and B300 from messages that name no card and were matched by size; those of the A30, the RTX
3090 and AMD's have not been looked up. Sheets disagree on fp4 of the B300: 13 to 14 PFLOPS.
"""

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.cluster.part import DeviceType
from meshwright.errors import InputError, nearest, quoted
from meshwright.units import GIB, MIB

_TERA, _GB_PER_SECOND, _GB = 1e12, 1e9, 1e9

# cuBLAS keeps a workspace for each thread that calls it: forward's and backward's. Default sizes of
# its manual: 2 x 4 MiB + 8 x 16 KiB, and 32 MiB from Hopper on (seen on an H200). PyTorch's for
# hipBLAS (CublasHandlePool.cpp, 2025): 32 MiB, and 128 MiB from MI300 on.
_CUBLAS_BYTES = 2 * 8.125 * MIB
_HOPPER_CUBLAS_BYTES = 2 * 32 * MIB
_MI200_BLAS_BYTES = 2 * 32 * MIB
_MI300_BLAS_BYTES = 2 * 128 * MIB


def _type(
    name: str,
    source: str,
    *,
    memory_bytes: float,
    gb_per_second: float,
    library_bytes: float = _CUBLAS_BYTES,
    is_asynchronous: bool = True,
    **teraflops: float,
) -> DeviceType:
    return DeviceType(
        name=name,
        flops_per_second={precision: rate * _TERA for precision, rate in teraflops.items()},
        memory_bytes=memory_bytes,
        memory_bytes_per_second=gb_per_second * _GB_PER_SECOND,
        library_bytes=library_bytes,
        is_asynchronous=is_asynchronous,
        source=source,
    )


_TYPES = (
    _type(
        "p100", "NVIDIA Tesla P100 PCIe 16 GB data sheet, 2016",
        memory_bytes=16280 * MIB, gb_per_second=732, fp64=4.7, fp32=9.3, fp16=18.7,
    ),
    # fp16 at 1/64 rate is slower than fp32, so libraries compute it as fp32.
    _type(
        "1080ti", "NVIDIA GeForce GTX 1080 Ti product page, 2017",
        memory_bytes=11178 * MIB, gb_per_second=484, fp64=0.354, fp32=11.34,
    ),
    _type(
        "titan-v", "NVIDIA Titan V product page, 2017: 110 deep learning TFLOPS",
        memory_bytes=12066 * MIB, gb_per_second=653, fp64=7.45, fp32=14.9, fp16=110,
    ),
    _type(
        "v100-16", "NVIDIA Tesla V100 SXM2 data sheet, 2018",
        memory_bytes=16160 * MIB, gb_per_second=900, fp64=7.8, fp32=15.7, fp16=125,
    ),
    _type(
        "v100-32", "NVIDIA Tesla V100 SXM2 data sheet, 2018",
        memory_bytes=32510 * MIB, gb_per_second=900, fp64=7.8, fp32=15.7, fp16=125,
    ),
    # Total without ECC's share.
    _type(
        "t4", "NVIDIA Tesla T4 data sheet, 2018",
        memory_bytes=15109 * MIB, gb_per_second=320, fp64=0.253, fp32=8.1, fp16=65,
    ),
    _type(
        "rtx3070", "NVIDIA Ampere GA102 white paper, appendix, 2020",
        memory_bytes=7.79 * GIB, gb_per_second=448,
        fp64=0.317, fp32=20.3, tf32=20.3, fp16=40.6, bf16=40.6,
    ),
    _type(
        "rtx3090", "NVIDIA Ampere GA102 white paper, appendix, 2020",
        memory_bytes=23.68 * GIB, gb_per_second=936,
        fp64=0.556, fp32=35.6, tf32=35.6, fp16=71.2, bf16=71.2, int8=284.7, int4=569.4,
    ),
    # 10,240 cores at 2.55 GHz; tensor rates are 2x (16 bit) and 4x (8 bit) of fp32.
    _type(
        "rtx4080s", "NVIDIA Ada white paper, 2023, with the product page's clocks, 2024",
        memory_bytes=15.69 * GIB, gb_per_second=736,
        fp64=0.816, fp32=52.2, tf32=52.2, fp16=104.4, bf16=104.4, fp8=208.9,
    ),
    _type(
        "rtx4090", "NVIDIA Ada GPU architecture white paper, appendix, 2023",
        memory_bytes=23.64 * GIB, gb_per_second=1008,
        fp64=1.29, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6, int4=1321.2,
    ),
    _type(
        "rtx5090", "NVIDIA RTX Blackwell GPU architecture white paper, appendix, 2025",
        memory_bytes=31.36 * GIB, gb_per_second=1792,
        fp64=1.64, fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419, fp4=1676, int8=838,
    ),
    _type(
        "a6000", "NVIDIA RTX A6000 data sheet, 2021: 309.7 tensor TFLOPS with sparsity",
        memory_bytes=47.53 * GIB, gb_per_second=768,
        fp64=0.605, fp32=38.7, tf32=77.4, fp16=154.8, bf16=154.8, int8=309.7, int4=619.3,
    ),
    _type(
        "a10", "NVIDIA A10 data sheet, 2021",
        memory_bytes=22.06 * GIB, gb_per_second=600,
        fp64=0.488, fp32=31.2, tf32=62.5, fp16=125, bf16=125, int8=250, int4=500,
    ),
    _type(
        "a30", "NVIDIA A30 data sheet, 2021: fp64 on tensor cores",
        memory_bytes=23.50 * GIB, gb_per_second=933,
        fp64=10.3, fp32=10.3, tf32=82, fp16=165, bf16=165, int8=330, int4=661,
    ),
    _type(
        "l4", "NVIDIA L4 data sheet, 2023: tensor peaks halved, as it has them with sparsity",
        memory_bytes=22.03 * GIB, gb_per_second=300,
        fp64=0.473, fp32=30.3, tf32=60, fp16=121, bf16=121, fp8=242.5, int8=242.5,
    ),
    _type(
        "l40s", "NVIDIA L40S data sheet, 2023",
        memory_bytes=44.39 * GIB, gb_per_second=864,
        fp64=1.431, fp32=91.6, tf32=183, fp16=362.05, bf16=362.05, fp8=733, int8=733,
    ),
    _type(
        "a100-40", "NVIDIA A100 SXM4 data sheet, 2021: fp64 on tensor cores",
        memory_bytes=39.39 * GIB, gb_per_second=1555,
        fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312,
    ),
    _type(
        "a100-80", "NVIDIA A100 SXM4 data sheet, 2021: fp64 on tensor cores",
        memory_bytes=79.14 * GIB, gb_per_second=2039,
        fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312,
    ),
    _type(
        "h100", "NVIDIA H100 SXM5 data sheet, 2023: fp64 on tensor cores",
        memory_bytes=79.10 * GIB, gb_per_second=3350, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979,
    ),
    # The H100's chip with HBM3e.
    _type(
        "h200", "NVIDIA H200 SXM data sheet, 2024: fp64 on tensor cores",
        memory_bytes=139.72 * GIB, gb_per_second=4800, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979,
    ),
    # Of the superchip the device is the Hopper chip: Grace and its memory are the host's.
    _type(
        "gh200", "NVIDIA GH200 Grace Hopper Superchip data sheet, 2023, with 96 GB of HBM3",
        memory_bytes=94.50 * GIB, gb_per_second=4000, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979, int8=1979,
    ),
    _type(
        "b200", "NVIDIA HGX B200 data sheet, 2025, a device's share",
        memory_bytes=178.35 * GIB, gb_per_second=8000, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=37, fp32=75, tf32=1100, fp16=2250, bf16=2250, fp8=4500, fp6=4500, fp4=9000, int8=4500,
    ),
    _type(
        "gb200", "NVIDIA GB200 NVL72 data sheet, 2025, one of its 72 devices' share",
        memory_bytes=184.31 * GIB, gb_per_second=8000, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=40, fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000, fp6=5000, fp4=10000, int8=5000,
    ),
    # 105 PFLOPS fp4, 72 fp8, 36 bf16 and 18 tf32 of eight devices, the last three with sparsity.
    _type(
        "b300", "NVIDIA HGX B300 data sheet, 2025, a device's share",
        memory_bytes=267.69 * GIB, gb_per_second=8000, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=1.25, fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500, fp6=4500, fp4=13125,
    ),
    # A module is two dies, each of which ROCm shows as a device, and PyTorch gives a rank.
    _type(
        "mi250x", "AMD Instinct MI250X data sheet, 2021, a module: fp64 and fp32 by matrix cores",
        memory_bytes=2 * 63.98 * GIB, gb_per_second=3276.8, library_bytes=2 * _MI200_BLAS_BYTES,
        fp64=95.7, fp32=95.7, fp16=383, bf16=383, int8=383,
    ),
    _type(
        "mi250x-gcd", "AMD Instinct MI250X data sheet, 2021, one of a module's two dies",
        memory_bytes=63.98 * GIB, gb_per_second=1638.4, library_bytes=_MI200_BLAS_BYTES,
        fp64=47.85, fp32=47.85, fp16=191.5, bf16=191.5, int8=191.5,
    ),
    _type(
        "mi300x", "AMD Instinct MI300X data sheet, 2023: fp64 by matrix cores",
        memory_bytes=191.98 * GIB, gb_per_second=5300, library_bytes=_MI300_BLAS_BYTES,
        fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9, int8=2614.9,
    ),
    _type(
        "mi325x", "AMD Instinct MI325X data sheet, 2024: fp64 by matrix cores",
        memory_bytes=255.98 * GIB, gb_per_second=6000, library_bytes=_MI300_BLAS_BYTES,
        fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9, int8=2614.9,
    ),
    # The matrix units of TPUs multiply bf16; fp32 takes six passes of them.
    _type(
        "tpuv4", "Jouppi et al., TPU v4, ISCA 2023, Table 4",
        memory_bytes=32 * GIB, gb_per_second=1200, library_bytes=0, fp32=275 / 6, bf16=275,
    ),
    _type(
        "tpuv5e", "Google Cloud documentation, TPU v5e, 2025",
        memory_bytes=16 * _GB, gb_per_second=819, library_bytes=0,
        fp32=197 / 6, bf16=197, int8=393,
    ),
    _type(
        "tpuv5p", "Google Cloud documentation, TPU v5p, 2025",
        memory_bytes=95 * _GB, gb_per_second=2765, library_bytes=0,
        fp32=459 / 6, bf16=459, int8=918,
    ),
    _type(
        "gaudi3", "Intel Gaudi 3 AI accelerator white paper, 2024",
        memory_bytes=128 * _GB, gb_per_second=3670, library_bytes=0,
        fp32=229, tf32=459, fp16=459, bf16=1835, fp8=1835,
    ),
    # 32 cores x 2 GHz x 2 AVX-512 FMA units x 16 lanes x 2 = 4.1 TFLOPS fp32; 8 channels of
    # DDR5-4800 = 307 GB/s; 256 GiB of memory fitted.
    _type(
        "cpu", "a generic server socket of 32 cores, no product",
        memory_bytes=256 * GIB, gb_per_second=307, library_bytes=0, is_asynchronous=False,
        fp64=2.05, fp32=4.1,
    ),
)  # fmt: skip

DEVICE_TYPES: Mapping[str, DeviceType] = MappingProxyType({each.name: each for each in _TYPES})
"""Every device type we know, by name."""


def find_type(
    device_type: DeviceType | str, named: Mapping[str, DeviceType] = MappingProxyType({})
) -> DeviceType:
    """A device type itself, or by its name: one of `named`, else of the catalogue."""
    if isinstance(device_type, DeviceType):
        return device_type
    found = named.get(device_type) or DEVICE_TYPES.get(device_type)
    if found is None:
        known = {**named, **DEVICE_TYPES}
        raise InputError(
            f"unknown device type {quoted(str(device_type))}; {nearest(str(device_type), known)}"
        )
    return found
