"""The sizes of the zoo's models whose steps formulas give op for op as capture does.

The models of `capture.zoo` have these sizes, too. What changes no op (how many rotary positions a
model was trained for) is there.
"""

from meshwright.graph.architecture.shape import Shape

BERT_VOCABULARY = 30_522
"""The released English one, uncased."""
BERT_POSITIONS = 512
GPT2_VOCABULARY = 50_257
LLAMA3_VOCABULARY = 128_256

Sizes = tuple[str, dict[str, int]]
"""An architecture and its sizes but for the sequence, which may be chosen."""


def _read(architecture: str, names: str, models: dict[str, tuple[int, ...]]) -> dict[str, Sizes]:
    """The sizes of some models by name, each in the order of the names of sizes."""
    return {
        name: (architecture, dict(zip(names.split(), sizes, strict=True)))
        for name, sizes in models.items()
    }


_DECODER = "layers hidden heads key_heads intermediate vocabulary"
_SIZES: dict[str, Sizes] = {
    # Radford et al. (2019), table 2, with the heads of the released checkpoints; Brown et al.
    # (2020), table 2.1; Narayanan et al. (2021), table 1, with the vocabulary padded as there.
    **_read("gpt", "layers hidden heads positions vocabulary", {
        "gpt2": (12, 768, 12, 1024, GPT2_VOCABULARY),
        "gpt2-medium": (24, 1024, 16, 1024, GPT2_VOCABULARY),
        "gpt2-large": (36, 1280, 20, 1024, GPT2_VOCABULARY),
        "gpt2-xl": (48, 1600, 25, 1024, GPT2_VOCABULARY),
        "gpt3-175b": (96, 12_288, 96, 2048, GPT2_VOCABULARY),
        "gpt-1t": (128, 25_600, 160, 2048, 51_200),
    }),
    # Touvron et al. (2023, "LLaMA"), table 2; Grattafiori et al. (2024), table 3; Jiang et al.
    # (2024), table 1.
    **_read("llama", _DECODER, {
        "llama-2-7b": (32, 4096, 32, 32, 11_008, 32_000),
        "llama-3-8b": (32, 4096, 32, 8, 14_336, LLAMA3_VOCABULARY),
        "llama-3-70b": (80, 8192, 64, 8, 28_672, LLAMA3_VOCABULARY),
        "llama-3-405b": (126, 16_384, 128, 8, 53_248, LLAMA3_VOCABULARY),
    }),
    **_read("mixtral", f"{_DECODER} experts experts_per_token", {
        "mixtral-8x7b": (32, 4096, 32, 8, 14_336, 32_000, 8, 2),
    }),
    # Small: Turc et al. (2019); base and large: Devlin et al. (2019), section 3; 36 and
    # 48 layers of BERT-Large's width: the pipeline papers (DAPPLE, Fan et al. 2021; Chimera, Li and
    # Hoefler 2021).
    **_read("bert", "layers hidden heads positions vocabulary", {
        "bert-small": (4, 512, 8, BERT_POSITIONS, BERT_VOCABULARY),
        "bert-base": (12, 768, 12, BERT_POSITIONS, BERT_VOCABULARY),
        "bert-large": (24, 1024, 16, BERT_POSITIONS, BERT_VOCABULARY),
        "bert-36": (36, 1024, 16, BERT_POSITIONS, BERT_VOCABULARY),
        "bert-48": (48, 1024, 16, BERT_POSITIONS, BERT_VOCABULARY),
    }),
    # Dosovitskiy et al. (2021), table 1.
    **_read("vit", "layers hidden heads", {"vit-l": (24, 1024, 16)}),
}  # fmt: skip


def shape_names(architecture: str | None = None) -> tuple[str, ...]:
    """The models that formulas give; those of one architecture where it is said."""
    return tuple(
        name for name, (each, _) in _SIZES.items() if architecture is None or each == architecture
    )


def find_sizes(name: str) -> dict[str, int]:
    """The sizes of a model that formulas give, but for the sequence."""
    return _SIZES[name][1]


def find_shape(name: str, sequence: int | None) -> Shape | None:
    """The shape of a model on samples of `sequence` tokens; None where formulas do not give it."""
    found = _SIZES.get(name)
    if found is None:
        return None
    architecture, sizes = found
    chosen = {} if sequence is None else {"sequence": sequence}
    return Shape(architecture=architecture, sizes={**sizes, **chosen})
