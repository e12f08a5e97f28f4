"""Pre-training with masked words and next sentences, against BERT of transformers.

Our program is the training loop of this package. The peer is `BertForPreTraining` of transformers
in a plain PyTorch loop, under autocast for bf16 and compiled on CUDA. Each program has its own
process, and both are measured alternately. They train a model of the same shape on the same batch
of 32 texts of 128 tokens (--quick: 8; on CUDA: 256). All texts have full length, because padding
would slow down the peer only. 15 % of the tokens are masked. The vocabulary has 30,522 entries,
dropout is 0.1, and both programs use AdamW and gradient clipping.

`gemm_share` is the FLOP/s of the matrix products that every implementation needs, as a share of the
FLOP/s of one large product. Of the output layer, only the products at masked tokens count. Memory
is on CUDA the maximum allocated, and on a CPU the memory in use at the end. On a CPU,
`auto_of_best` compares two runs of our program: with precision=auto, which measures both and
chooses, and with the faster of fp32 and bf16. `recipe` runs `pretrain bert --set size=mini` on
documents in each precision; its figures are training steps a second, without the preparation of the
data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from common import Figure, Results, arguments, compare, paired, rate, repeats_of, timed_steps
from texts import documents
from torch import Tensor, nn

from sbert_search.base.device import autocast, matmul_rate, memory_bytes, resolve_device
from sbert_search.base.distributed import Ranks
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.text.tokens.vocabulary import SPECIAL_TOKENS, save_vocabulary
from sbert_search.text.tokens.words import WordRules
from sbert_search.train.loop.gradients import StepContext
from sbert_search.train.loop.loop import choose_precision
from sbert_search.train.loop.objective import Batch, Batches, BatchingConfig, Rows
from sbert_search.train.loop.optim import OptimConfig
from sbert_search.train.loop.schedule import RunState
from sbert_search.train.loop.step import Stepper
from sbert_search.train.pretrain import PretrainRecipe, pretrain
from sbert_search.train.pretraining_objectives import MaskedObjective
from sbert_search.train.recipe import load_recipe

VOCAB, LENGTH, MASK, FIRST_WORD, SHARE = 30_522, 128, 4, 1_000, 0.15
SHAPES = {"4x256": (4, 256, 4), "6x384": (6, 384, 6), "12x768": (12, 768, 12)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRECISIONS = ("fp32", "bf16", "auto")
LR = 1e-4
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Texts:
    """Masked texts of two segments, with the labels of masked tokens and of next sentences.

    Attributes:
        ids: Token ids, (batch, 128).
        types: 1 for tokens of the second segment, (batch, 128).
        labels: Original ids of masked tokens, else -100, (batch, 128).
        pairs: Next-sentence labels, (batch,).
    """

    ids: Tensor
    types: Tensor
    labels: Tensor
    pairs: Tensor

    @classmethod
    def draw(cls, batch: int, seed: int) -> Texts:
        """Draw random texts, masks and labels."""
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(FIRST_WORD, VOCAB, (batch, LENGTH), generator=draw)
        masked = torch.rand(ids.shape, generator=draw) < SHARE
        types = (torch.arange(LENGTH) >= LENGTH // 2).long().repeat(batch, 1)
        labels = torch.where(masked, ids, -100)
        pairs = torch.randint(0, 2, (batch,), generator=draw)
        return cls(ids.masked_fill(masked, MASK), types, labels, pairs)


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for BERT-base in bf16")
    parser.add_argument("--recipe", action="store_true", help="run only the recipe, on the CPU")
    parser.add_argument(
        "--only", choices=SHAPES, help="measure only this shape; on the CPU, only in fp32"
    )
    options = parser.parse_args()
    device, results = resolve_device(options.device), Results(options)
    on_cpu = device.type == "cpu"
    if options.only:
        measure(results, options, options.only, "fp32" if on_cpu else "bf16", device)
        return
    if options.recipe:
        measure_recipe(results, options)
        return
    wanted = ("4x256", "6x384") if on_cpu else ("12x768",)
    for shape in wanted:
        for precision in ("fp32", "bf16") if on_cpu else ("bf16",):
            measure(results, options, shape, precision, device)
        if on_cpu:
            measure_auto(results, options, shape)
    if on_cpu:
        measure_recipe(results, options)


def measure(
    results: Results, options: argparse.Namespace, shape: str, precision: str, device: torch.device
) -> None:
    """Compare speed and memory of both programs with one shape and precision."""
    batch = (8 if options.quick else 32) if device.type == "cpu" else 256
    steps = (1 if options.quick else 3) if device.type == "cpu" else 20
    work = Work(shape, precision, device, batch, steps, options.seed)
    with contestant(our_steps, work) as ours, contestant(peer_steps, work) as peer:
        figure = compare(ours.rate, peer.rate, unit="tokens/s", repeats=repeats_of(options))
        held, peer_held = ours.memory(), peer.memory()
    results.add(f"{precision}_{shape}", figure)
    share = figure.value * flops_per_token(shape) / matmul_rate(device, DTYPES[precision]).flops
    results.add(f"{precision}_{shape}_gemm_share", Figure(share, "of GEMM"))
    mine, other = (bytes_held / 2**20 for bytes_held in (held, peer_held))
    results.add(f"{precision}_{shape}_memory", Figure(mine, "MiB", other, mine / other))


def measure_auto(results: Results, options: argparse.Namespace, shape: str) -> None:
    """Compare precision=auto, which measures and chooses, with the faster of fp32 and bf16."""
    batch, steps = (8, 1) if options.quick else (32, 3)
    speeds: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    with ExitStack() as stack:
        ours = {
            name: stack.enter_context(
                contestant(our_steps, Work(shape, name, CPU, batch, steps, options.seed))
            )
            for name in PRECISIONS
        }
        for number in range(1 + repeats_of(options)):  # the first round warms up
            for name, program in ours.items():
                speed = program.rate()
                if number:
                    speeds[name].append(speed)
    add_auto(results, shape, speeds, "tokens/s")


def measure_recipe(results: Results, options: argparse.Namespace) -> None:
    """Run the recipe for BERT with size mini in each precision; add the speeds of its steps."""
    minutes = 0.3 if options.quick else 1.0
    speeds: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    with TemporaryDirectory() as scratch:
        text = Path(scratch) / "text.jsonl"
        _, rows = documents(2_000)
        text.write_text("".join(json.dumps({"text": row.text}) + "\n" for row in rows))
        settings = ["size=mini", f"tokenizer={resolve_model().path}", f"data.train={text}"]
        settings += [f"data.folder={scratch}/tokens", "device=cpu", f"budget.minutes={minutes}"]
        for number in range(repeats_of(options)):
            for name in PRECISIONS:
                if number and speeds[name][0] < max(each[0] for each in speeds.values()) / 5:
                    continue  # an emulated number type: minutes for a step
                recipe = load_recipe(
                    PretrainRecipe, "pretrain", "bert", [*settings, f"precision={name}"]
                )
                with timed_steps() as times:
                    pretrain(recipe, Path(scratch) / f"{name}-{number}")
                speeds[name].append(len(times) / 2 / (times[-1] - times[0]))
    for name in ("fp32", "bf16"):
        results.add(f"{name}_recipe", Figure(median(speeds[name]), "steps/s"))
    add_auto(results, "recipe", speeds, "steps/s")


def add_auto(results: Results, name: str, speeds: Mapping[str, list[float]], unit: str) -> None:
    """Add the figure that compares auto with the faster of fp32 and bf16."""
    best = max(DTYPES, key=lambda precision: median(speeds[precision]))
    results.add(f"auto_of_best_{name}", paired(speeds["auto"], speeds[best], unit=unit))


Steps = Callable[[], None]
Maker = Callable[[str, Texts, torch.dtype | None, torch.device, int], Steps]


@dataclass(frozen=True)
class Work:
    """What one measurement runs: `steps` training steps on a batch of `batch` texts."""

    shape: str
    precision: str
    device: torch.device
    batch: int
    steps: int
    seed: int


_running: list[tuple[Steps, Work]] = []  # filled in child processes only


class Contestant(NamedTuple):
    """One of the two programs, running in its own process.

    Attributes:
        rate: Trains for some steps and returns the tokens a second.
        memory: Returns the memory of the program in bytes.
    """

    rate: Callable[[], float]
    memory: Callable[[], int]


@contextmanager
def contestant(make: Maker, work: Work) -> Iterator[Contestant]:
    """Start a process for one of the two programs."""
    with ProcessPoolExecutor(1, get_context("spawn"), _prepare, (make, work)) as process:
        yield Contestant(
            lambda: process.submit(_measure).result(),
            lambda: process.submit(memory_bytes, work.device).result(),
        )


def _prepare(make: Maker, work: Work) -> None:
    torch.manual_seed(work.seed)
    texts = Texts.draw(work.batch, work.seed)
    run = make(work.shape, texts, DTYPES.get(work.precision), work.device, work.steps)
    _running.append((run, work))


def _measure() -> float:
    ((run, work),) = _running

    def to_the_end() -> None:
        run()
        if work.device.type != "cpu":
            torch.accelerator.synchronize(work.device)

    return rate(work.batch * work.steps * LENGTH, to_the_end)


def our_steps(
    shape: str, texts: Texts, dtype: torch.dtype | None, device: torch.device, steps: int
) -> Steps:
    """Return a function that takes ``steps`` steps of our training loop; dtype None is auto.

    A step includes collation, failure checks and clipping.
    """
    layers, hidden, heads = SHAPES[shape]
    config = EncoderConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        intermediate_size=4 * hidden,
        pooler=True,
    )
    model = MaskedLanguageModel(Encoder(config), make_tokenizer(), pairs=True).to(device).train()
    n = len(texts.pairs)
    masked_positions = (texts.labels.flatten() != -100).nonzero().squeeze(1)
    labels = texts.labels.flatten()[masked_positions]
    tokens = PackedTokens(texts.ids.flatten(), (LENGTH,) * n, texts.types.flatten())
    given = MaskedBatch(tokens, masked_positions, labels, texts.pairs)

    def collate(rows: Rows, epoch: int) -> Batch:
        return Batch(given, rows, {"mlm": len(labels), "nsp": n})

    batches = Batches([LENGTH] * n, collate, BatchingConfig(size=n), seed=0, fingerprint="")
    if dtype is None:
        dtype, _ = choose_precision("auto", device, model, batches, Ranks(), None)
    context = StepContext(device, dtype, Ranks(), 0)
    stepper = Stepper(MaskedObjective("nsp"), batches, model, OptimConfig(lr=LR), context)
    state = RunState()
    plan = stepper.plan(0, 0, None)

    def run() -> None:
        for _ in range(steps):
            stepper.take(next(plan), state, LR)

    return run


def peer_steps(
    shape: str, texts: Texts, dtype: torch.dtype | None, device: torch.device, steps: int
) -> Steps:
    """Return a function that takes ``steps`` steps of a plain loop over transformers' model."""
    from transformers import BertConfig, BertForPreTraining

    assert dtype is not None
    layers, hidden, heads = SHAPES[shape]
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    model = BertForPreTraining(config).train()
    nn.Module.to(model, device)
    forward = torch.compile(model) if device.type == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    inputs = {
        "input_ids": texts.ids,
        "attention_mask": torch.ones_like(texts.ids),
        "token_type_ids": texts.types,
        "labels": texts.labels,
        "next_sentence_label": texts.pairs,
    }
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}

    def run() -> None:
        for _ in range(steps):
            with autocast(device, dtype):
                loss = forward(**inputs).loss
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def flops_per_token(shape: str) -> float:
    """Return the FLOPs per token of the matrix products that every training step needs.

    For each token, a weight is multiplied and added once in the forward pass and twice in the
    backward pass. A multiplication and an addition are 2 FLOPs. The weights of the output layer
    count for masked tokens only. The two matrix products of attention, which have no weights, count
    as well.
    """
    layers, hidden, _ = SHAPES[shape]
    blocks = layers * (12 * hidden**2 + 2 * LENGTH * hidden)
    return 6 * (blocks + SHARE * (hidden**2 + hidden * VOCAB))


def make_tokenizer() -> TextTokenizer:
    """Make a tokenizer with a vocabulary of BERT's size.

    The model's constructor needs a tokenizer. No text is tokenized: the batches are token ids.
    """
    pieces = [*SPECIAL_TOKENS, *(f"w{n}" for n in range(VOCAB - len(SPECIAL_TOKENS)))]
    with TemporaryDirectory() as scratch:
        save_vocabulary(Path(scratch) / "vocabulary", pieces, WordRules())
        return TextTokenizer.from_folder(Path(scratch) / "vocabulary", LENGTH)


if __name__ == "__main__":
    main()
