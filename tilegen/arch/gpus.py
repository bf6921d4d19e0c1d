"""GPUs by name, as their vendor describes them: one table, with the source of each row.

Nothing here was measured. What was measured, on an H200 alone, stands in tilegen.arch.machine, which makes
from these rows what a plan is made for.
"""

from __future__ import annotations

from dataclasses import dataclass

KB, MB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Architecture:
    """What all machines of a kind have in each SM. Sizes in bytes.

    name: sm_90a for Hopper, another compute capability for other GPUs, cpu for what has no SMs.
    target: the target whose kernels are the best for it.
    """

    name: str
    target: str
    shared_block: int  # of shared memory that a block may use
    shared_sm: int
    registers: int = 65536  # of 32 bits
    mma_sync: bool = True
    tma: bool = False
    wgmma: bool = False

    @property
    def portable(self) -> str:
        """What the kernel for sm_80 and later is compiled for: sm_90 on Hopper."""
        return self.name.removesuffix("a")


@dataclass(frozen=True)
class Gpu:
    """A GPU as its vendor describes it. Rates are peaks of the whole GPU, without sparsity."""

    title: str
    chip: Architecture
    sms: int
    l2: int  # bytes
    memory: float  # bytes/s
    flops16: float  # FLOP/s of the tensor cores in bfloat16, sums in float32
    flops32: float  # FLOP/s in float32, without tensor cores
    clock: float  # Hz, at which the vendor reckons flops16
    source: str
    # CTAs of a cluster -> how many clusters are resident, an SM a CTA, where that is fewer than SMs would
    # take: a cluster lies in one GPC, whose SMs may be no multiple of it
    clusters: tuple[tuple[int, int], ...] = ()

    @property
    def architecture(self) -> str:
        return self.chip.name

    @property
    def shared_block(self) -> int:
        """Bytes of shared memory that a block may use."""
        return self.chip.shared_block

    @property
    def text(self) -> str:
        sizes = f"{self.shared_block >> 10} KB of shared memory a block, {self.l2 >> 20} MB of L2"
        rates = f"{self.flops16 / 1e12:g} TFLOP/s in bfloat16, {self.memory / 1e12:g} TB/s"
        return f"{self.title}: {self.architecture}, {self.sms} SMs, {sizes}, {rates}"


CPU = Architecture("cpu", "cpu", 0, 0, 0, mma_sync=False)
SM_80 = Architecture("sm_80", "sm_80", 163 * KB, 164 * KB)
SM_86 = Architecture("sm_86", "sm_80", 99 * KB, 100 * KB)
SM_87 = Architecture("sm_87", "sm_80", 163 * KB, 164 * KB)
SM_89 = Architecture("sm_89", "sm_80", 99 * KB, 100 * KB)
SM_90 = Architecture("sm_90a", "sm_90a", 227 * KB, 228 * KB, tma=True, wgmma=True)
SM_100 = Architecture("sm_100", "sm_80", 227 * KB, 228 * KB, tma=True)
SM_103 = Architecture("sm_103", "sm_80", 227 * KB, 228 * KB, tma=True)
SM_120 = Architecture("sm_120", "sm_80", 99 * KB, 100 * KB, tma=True)
ARCHITECTURES = {a.name: a for a in (CPU, SM_80, SM_86, SM_87, SM_89, SM_90, SM_100, SM_103, SM_120)}

GUIDE = "CUDA C++ Programming Guide, compute capabilities"
A100 = f"NVIDIA A100 80GB datasheet; A100 Tensor Core GPU Architecture whitepaper; {GUIDE}"
H100 = f"NVIDIA H100 datasheet; H100 Tensor Core GPU Architecture whitepaper; {GUIDE}"
# of an H200 (docs/perf-log.md): of 4 and 8 by cuOccupancyMaxActiveClusters, of others one less than times
# show, for GPCs differ from one chip to the next
CLUSTERS = ((3, 38), (4, 30), (5, 21), (6, 16), (7, 14), (8, 15))
H200 = f"NVIDIA H200 datasheet; the chip is that of the H100 whitepaper; {GUIDE}"
B200 = (
    f"NVIDIA HGX B200 datasheet, an eighth of it; Blackwell Tuning Guide for L2; {GUIDE}; "
    "clock from flops16 and 8192 FLOP an SM. "
    "flops16 is tcgen05's: mma.sync, which the kernel for sm_80 multiplies with, does not reach it"
)
GA102 = f"NVIDIA Ampere GA102 GPU Architecture whitepaper; {GUIDE}"
ADA = f"NVIDIA Ada GPU Architecture whitepaper; {GUIDE}"
GB202 = f"NVIDIA RTX Blackwell GPU Architecture whitepaper; {GUIDE}"

GPUS = {
    "a100": Gpu("A100 SXM4 80GB", SM_80, 108, 40 * MB, 2.039e12, 312e12, 19.5e12, 1.410e9, A100),
    "a100-pcie": Gpu("A100 PCIe 80GB", SM_80, 108, 40 * MB, 1.935e12, 312e12, 19.5e12, 1.410e9, A100),
    "h100": Gpu("H100 SXM5 80GB", SM_90, 132, 50 * MB, 3.35e12, 989.4e12, 66.9e12, 1.830e9, H100, CLUSTERS),
    "h100-pcie": Gpu("H100 PCIe 80GB", SM_90, 114, 50 * MB, 2.0e12, 756e12, 51.2e12, 1.620e9, H100),
    "h200": Gpu("H200 SXM 141GB", SM_90, 132, 50 * MB, 4.8e12, 989.4e12, 66.9e12, 1.830e9, H200, CLUSTERS),
    "b200": Gpu("B200 SXM 180GB", SM_100, 148, 126 * MB, 8.0e12, 2250e12, 75e12, 1.856e9, B200),
    "rtx-3090": Gpu("GeForce RTX 3090", SM_86, 82, 6 * MB, 0.936e12, 71e12, 35.6e12, 1.695e9, GA102),
    "rtx-4090": Gpu("GeForce RTX 4090", SM_89, 128, 72 * MB, 1.008e12, 165.2e12, 82.6e12, 2.520e9, ADA),
    "rtx-5090": Gpu("GeForce RTX 5090", SM_120, 170, 96 * MB, 1.792e12, 209.5e12, 104.8e12, 2.407e9, GB202),
}


def architecture(name: str) -> Architecture:
    """That of a compute capability such as sm_90. One that has no row here is taken for sm_86, which has the
    least of all."""
    return ARCHITECTURES.get(name) or ARCHITECTURES.get(f"{name}a") or SM_86


def named(title: str, sms: int) -> str:
    """The row of the GPU that a driver calls `title` and that has so many SMs, or an empty string: "NVIDIA
    A100-SXM4-80GB" -> a100."""
    words = title.lower().replace("-", " ").split()
    model = (
        "-".join(words[words.index("rtx") :][:2])
        if "rtx" in words
        else next((word for word in words if word in GPUS), "")
    )
    name = f"{model}-pcie" if f"{model}-pcie" in GPUS and "pcie" in words else model
    other = {"40gb", "nvl", "ti", "super", "laptop"} & set(words)  # of the same name, with other rates
    return name if name in GPUS and GPUS[name].sms == sms and not other else ""
