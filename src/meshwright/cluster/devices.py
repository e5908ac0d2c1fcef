"""Device types as their makers describe them. Data only.

Peaks are dense (no sparsity) with fp32 accumulation where the sheet distinguishes, at boost
clocks; a precision without its own rate is left out and runs as fp32 does. Memory is what CUDA
reports as total where known, which is below the number on the box because the driver keeps some;
otherwise the number on the box, as the comment says.
"""

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.cluster.part import DeviceType
from meshwright.units import GIB, MIB

_TERA, _GB_PER_SECOND = 1e12, 1e9

# cuBLAS keeps a workspace for each thread that calls it: forward's and backward's. Default sizes of
# its manual: 2 x 4 MiB + 8 x 16 KiB, and 32 MiB from Hopper on (seen on an H200).
_CUBLAS_BYTES = 2 * 8.125 * MIB
_HOPPER_CUBLAS_BYTES = 2 * 32 * MIB


def _type(
    name: str,
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
    )


_TYPES = (
    # Tesla P100 PCIe 16 GB data sheet (2016). CUDA total.
    _type("p100", memory_bytes=16280 * MIB, gb_per_second=732, fp64=4.7, fp32=9.3, fp16=18.7),
    # GeForce GTX 1080 Ti product page (2017); fp16 at 1/64 rate is slower than fp32, so libraries
    # compute it as fp32. CUDA total.
    _type("1080ti", memory_bytes=11178 * MIB, gb_per_second=484, fp64=0.354, fp32=11.34),
    # Titan V product page (2017), 110 deep learning TFLOPS. CUDA total.
    _type("titan-v", memory_bytes=12066 * MIB, gb_per_second=653, fp64=7.45, fp32=14.9, fp16=110),
    # Tesla V100 SXM2 data sheet (2018). CUDA totals.
    _type("v100-16", memory_bytes=16160 * MIB, gb_per_second=900, fp64=7.8, fp32=15.7, fp16=125),
    _type("v100-32", memory_bytes=32510 * MIB, gb_per_second=900, fp64=7.8, fp32=15.7, fp16=125),
    # Tesla T4 data sheet (2018). CUDA total without ECC's share.
    _type("t4", memory_bytes=15109 * MIB, gb_per_second=320, fp64=0.253, fp32=8.1, fp16=65),
    # NVIDIA Ampere GA102 white paper, appendix (2020). CUDA total 7.79 GiB.
    _type(
        "rtx3070", memory_bytes=7.79 * GIB, gb_per_second=448,
        fp64=0.317, fp32=20.3, tf32=20.3, fp16=40.6, bf16=40.6,
    ),
    # NVIDIA Ada white paper for the chip, product page for clocks (2024): 10,240 cores at
    # 2.55 GHz; tensor rates are 2x (16 bit) and 4x (8 bit) of fp32. CUDA total 15.69 GiB.
    _type(
        "rtx4080s", memory_bytes=15.69 * GIB, gb_per_second=736,
        fp64=0.816, fp32=52.2, tf32=52.2, fp16=104.4, bf16=104.4, fp8=208.9,
    ),
    # A100 SXM4 data sheet (2021); fp64 on tensor cores. CUDA totals 39.39 and 79.14 GiB.
    _type(
        "a100-40", memory_bytes=39.39 * GIB, gb_per_second=1555,
        fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312,
    ),
    _type(
        "a100-80", memory_bytes=79.14 * GIB, gb_per_second=2039,
        fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312,
    ),
    # H100 SXM5 data sheet (2023); fp64 on tensor cores. CUDA total 79.10 GiB.
    _type(
        "h100", memory_bytes=79.10 * GIB, gb_per_second=3350, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979,
    ),
    # H200 SXM data sheet (2024): the H100's chip with HBM3e. CUDA total 139.72 GiB.
    _type(
        "h200", memory_bytes=139.72 * GIB, gb_per_second=4800, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=67, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979,
    ),
    # HGX B200 data sheet (2025), a device's share, dense. CUDA total 178.35 GiB.
    _type(
        "b200", memory_bytes=178.35 * GIB, gb_per_second=8000, library_bytes=_HOPPER_CUBLAS_BYTES,
        fp64=37, fp32=75, tf32=1100, fp16=2250, bf16=2250, fp8=4500,
    ),
    # Jouppi et al., TPU v4, ISCA 2023, Table 4: 275 TFLOPS bf16, 32 GiB, 1,200 GB/s. Memory as
    # the paper has it. The matrix unit multiplies bf16 only; fp32 takes six passes of it.
    _type(
        "tpuv4", memory_bytes=32 * GIB, gb_per_second=1200, library_bytes=0,
        fp32=275 / 6, bf16=275,
    ),
    # A generic server socket, no product: 32 cores x 2 GHz x 2 AVX-512 FMA units x 16 lanes x 2
    # = 4.1 TFLOPS fp32; 8 channels of DDR5-4800 = 307 GB/s; 256 GiB of memory fitted.
    _type(
        "cpu", memory_bytes=256 * GIB, gb_per_second=307, library_bytes=0, is_asynchronous=False,
        fp64=2.05, fp32=4.1,
    ),
)  # fmt: skip

DEVICE_TYPES: Mapping[str, DeviceType] = MappingProxyType({each.name: each for each in _TYPES})
"""Every device type we know, by name."""
