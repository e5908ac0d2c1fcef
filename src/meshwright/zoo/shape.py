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


def shape_names(architecture: str | None = None) -> tuple[str, ...]:
    """The models that formulas give; those of one architecture where it is said."""
    return tuple(
        name for name, (each, _) in _sizes().items() if architecture is None or each == architecture
    )


def find_sizes(name: str) -> dict[str, int]:
    """The sizes of a model that formulas give, but for the sequence."""
    return _sizes()[name][1]


def find_shape(name: str, sequence: int | None) -> Shape | None:
    """The shape of a model on samples of `sequence` tokens; None where formulas do not give it."""
    found = _sizes().get(name)
    if found is None:
        return None
    architecture, sizes = found
    chosen = {} if sequence is None else {"sequence": sequence}
    return Shape(architecture=architecture, sizes={**sizes, **chosen})


def _sizes() -> dict[str, Sizes]:
    # Dosovitskiy et al. (2021), table 1.
    vit = _shape("vit", ("layers", "hidden", "heads"), (24, 1024, 16))
    return {**_gpt(), **_llama(), **_bert(), "vit-l": vit}


def _gpt() -> dict[str, Sizes]:
    # Radford et al. (2019), table 2, with the heads of the released checkpoints; Brown et al.
    # (2020), table 2.1; Narayanan et al. (2021), table 1, with the vocabulary padded as there.
    sizes = {
        "gpt2": (12, 768, 12, 1024, GPT2_VOCABULARY),
        "gpt2-medium": (24, 1024, 16, 1024, GPT2_VOCABULARY),
        "gpt2-large": (36, 1280, 20, 1024, GPT2_VOCABULARY),
        "gpt2-xl": (48, 1600, 25, 1024, GPT2_VOCABULARY),
        "gpt3-175b": (96, 12_288, 96, 2048, GPT2_VOCABULARY),
        "gpt-1t": (128, 25_600, 160, 2048, 51_200),
    }
    names = ("layers", "hidden", "heads", "positions", "vocabulary")
    return {name: _shape("gpt", names, each) for name, each in sizes.items()}


def _llama() -> dict[str, Sizes]:
    # Touvron et al. (2023, "LLaMA"), table 2; Grattafiori et al. (2024), table 3; Jiang et al.
    # (2024), table 1.
    sizes = {
        "llama-2-7b": (32, 4096, 32, 32, 11_008, 32_000),
        "llama-3-8b": (32, 4096, 32, 8, 14_336, LLAMA3_VOCABULARY),
        "llama-3-70b": (80, 8192, 64, 8, 28_672, LLAMA3_VOCABULARY),
        "llama-3-405b": (126, 16_384, 128, 8, 53_248, LLAMA3_VOCABULARY),
    }
    names = ("layers", "hidden", "heads", "key_heads", "intermediate", "vocabulary")
    shapes = {name: _shape("llama", names, each) for name, each in sizes.items()}
    mixtral = (32, 4096, 32, 8, 14_336, 32_000, 8, 2)
    names_of_mixture = (*names, "experts", "experts_per_token")
    return {**shapes, "mixtral-8x7b": _shape("mixtral", names_of_mixture, mixtral)}


def _bert() -> dict[str, Sizes]:
    # Small: Turc et al. (2019); base and large: Devlin et al. (2019), section 3; 36 and
    # 48 layers of BERT-Large's width: the pipeline papers (DAPPLE, Fan et al. 2021; Chimera, Li and
    # Hoefler 2021).
    sizes = {
        "bert-small": (4, 512, 8),
        "bert-base": (12, 768, 12),
        "bert-large": (24, 1024, 16),
        "bert-36": (36, 1024, 16),
        "bert-48": (48, 1024, 16),
    }
    names = ("layers", "hidden", "heads", "positions", "vocabulary")
    text = (BERT_POSITIONS, BERT_VOCABULARY)
    return {name: _shape("bert", names, (*each, *text)) for name, each in sizes.items()}


def _shape(architecture: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> Sizes:
    return architecture, dict(zip(names, sizes, strict=True))
