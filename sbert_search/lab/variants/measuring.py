"""Pre-train, fine-tune and measure the models of a comparison of architectures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from sbert_search.base.device import resolve_device
from sbert_search.base.files import remove_tree
from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError
from sbert_search.evaluate.perplexity import evaluate_masked
from sbert_search.evaluate.tasks import Kind, distinct_tasks, find_task
from sbert_search.lab.anisotropy.analyze import evaluate_vectors
from sbert_search.lab.variants.recipe import (
    TEACHER,
    Piece,
    Reading,
    Result,
    Tuning,
    VariantsRecipe,
    pretrain_recipe,
)
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.weights import load_encoder
from sbert_search.models.loading.folder import read_folder
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.text.documents import CorpusReader, FieldNames
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.tokens.wordpiece import BATCH_ROWS, VocabularySettings, train_tokenizer
from sbert_search.train.bi_encoder import BiEncoderRecipe, train_bi_encoder
from sbert_search.train.loop.checkpoint import checkpoint_path, checkpoints, read_checkpoint
from sbert_search.train.loop.log import LOG, read_log
from sbert_search.train.pretrain import build, pretrain
from sbert_search.train.recipe import load_recipe
from sbert_search.train.run import MODEL
from sbert_search.wings import installed

_ENCODED = 512  # largest number of texts whose encoding is timed
_HELD_OUT = 512  # largest number of examples for the held-out loss


class Measuring:
    """Pre-trains a model of each family that is compared (BERT, ALBERT ...), and measures it.

    The runs are in the folder ``work``; the paths of shipped tasks start from ``data``.
    """

    def __init__(self, recipe: VariantsRecipe, work: Path, data: Path, device: str) -> None:
        self.recipe, self.work, self.data = recipe, work, data
        # "auto" is replaced by the device that it means, so that a training that began with "auto"
        # can resume with "cpu", if that is the same device.
        self.device = str(resolve_device(device))

    def vocabulary(self) -> Path:
        """Return the folder of the tokenizer, which is trained if the recipe names none."""
        if self.recipe.vocabulary is not None:
            return Path(self.recipe.vocabulary)
        folder = self.work / "vocabulary"
        if not folder.exists():
            fields = FieldNames(text=self.recipe.text_field)
            reader = CorpusReader(self.recipe.corpus, fields=fields, batch_rows=BATCH_ROWS)
            train_tokenizer(reader, folder, VocabularySettings(vocab_size=self.recipe.vocab_size))
        return folder

    def run_folder(self, piece: Piece) -> Path:
        """Return the folder of a pre-training."""
        return self.work / "runs" / f"{piece.family}-{piece.seed}"

    def pretrain(self, piece: Piece, teacher: Reading | None) -> Result:
        """Pre-train a model of a family, or go on from the newest checkpoint.

        ``teacher`` is the checkpoint from which distilbert learns.
        """
        folder = self.run_folder(piece)
        recipe = pretrain_recipe(
            self.recipe,
            piece.family,
            piece.seed,
            vocabulary=self.vocabulary(),
            tokens=self.work / "tokens",
            teacher=self.model(Piece("pretrain", TEACHER, piece.seed), teacher)
            if teacher
            else None,
            device=self.device,
        )
        result = pretrain(recipe, folder, resume=bool(checkpoints(folder)))
        log = read_log(folder / LOG)
        own = {line["step"]: line["figures"] for line in log if line["kind"] == "dev"}
        readings = []
        for path in checkpoints(folder):
            state = read_checkpoint(path).state["run"]
            assert isinstance(state, dict)
            if state["step"] not in own:
                continue  # saved at an interruption, between two evaluations
            readings.append(
                Reading(
                    step=state["step"],
                    tokens=state["tokens"],
                    processor_seconds=state["processor_seconds"],
                    figures=own[state["step"]],
                )
            )
        figures = _sizes(build(recipe)[0], self.model(piece, readings[-1]), readings[-1])
        return {"seconds": result.state.seconds, "figures": figures, "readings": readings}

    def slim(self, piece: Piece) -> None:
        """Remove the training state from the checkpoints of a finished run; the models stay."""
        for path in checkpoints(self.run_folder(piece)):
            remove_tree(path / "state.safetensors")

    def model(self, piece: Piece, reading: Reading) -> Path:
        """Return the folder of the model of a checkpoint."""
        return checkpoint_path(self.run_folder(piece), reading["step"]) / "model"

    def measure(self, piece: Piece, reading: Reading) -> Result:
        """Measure the model of a checkpoint, after the fine-tuning that the piece needs."""
        started = time.monotonic()
        model = self.model(piece.training, reading)
        scratch = self.work / "tuning" / piece.name
        match piece.part:
            case "sts":
                figures = self._sts(model, scratch, piece.seed)
            case "pairs":
                figures = self._pairs(model, scratch, piece.seed)
            case "classify":
                figures = self._classify(model, scratch, piece.seed)
            case _:
                figures = self._raw(model, reading)
        remove_tree(scratch)
        return {
            "seconds": time.monotonic() - started,
            "figures": figures,
            "step": reading["step"],
        }

    def _raw(self, model: Path, reading: Reading) -> dict[str, float]:
        """Measure a model without fine-tuning.

        ELECTRA detects replaced tokens and does not predict masked tokens. Its held-out figures
        come from its training log.
        """
        detected = {n: v for n, v in reading["figures"].items() if n in ("rtd", "rtd_accuracy")}
        figures = {f"held-out {name}": value for name, value in detected.items()}
        if not detected:
            fields = FieldNames(text=self.recipe.text_field)
            reader = CorpusReader(self.recipe.held_out, fields=fields)
            masked = MaskedLanguageModel.load(model).to(resolve_device(self.device)).eval()
            length = self.recipe.max_len
            metrics = evaluate_masked(masked, reader, max_len=length, most=_HELD_OUT)
            figures["held-out MLM loss"] = metrics.loss
        embedder = self._open(model)
        figures |= self._scores("sts", self.recipe.sts, embedder, "raw")
        figures |= self._scores("retrieval", self.recipe.retrieval, embedder, "raw")
        return figures | self._speed(embedder)

    def _sts(self, model: Path, scratch: Path, seed: int) -> dict[str, float]:
        assert self.recipe.nli is not None
        after = self._tuned(self.recipe.nli, model, scratch / "nli", seed)
        figures = self._scores("sts", self.recipe.sts, self._open(after), "NLI")
        if self.recipe.stsb is not None:
            then = self._tuned(self.recipe.stsb, after, scratch / "stsb", seed)
            figures |= self._scores("sts", self.recipe.sts, self._open(then), "NLI, STSb")
        return figures

    def _pairs(self, model: Path, scratch: Path, seed: int) -> dict[str, float]:
        assert self.recipe.pairs is not None
        tuned = self._tuned(self.recipe.pairs, model, scratch, seed)
        return self._scores("retrieval", self.recipe.retrieval, self._open(tuned), "pairs")

    def _classify(self, model: Path, scratch: Path, seed: int) -> dict[str, float]:
        if "heads" not in installed():
            raise ConfigError("The classifier of a comparison needs heads, which is not installed.")
        from sbert_search.heads.evaluation import evaluate_classify
        from sbert_search.heads.predictor import Predictor
        from sbert_search.heads.train_classifier import ClassifyRecipe, train_classifier

        tuning = self.recipe.classifier
        assert tuning is not None
        if not (scratch / MODEL).is_dir():
            settings = [*tuning.settings, *self._start(model, seed)]
            recipe = load_recipe(ClassifyRecipe, "classify", tuning.recipe, settings)
            train_classifier(recipe, scratch, resume=bool(checkpoints(scratch)))
        predictor = Predictor(scratch / MODEL, device=self.device, precision="fp32")
        figures = {}
        for task in distinct_tasks([find_task("classify", name) for name in self.recipe.classify]):
            done = evaluate_classify(task, predictor, data=self.data)
            figures[f"{task.name} {task.main_metric}"] = done.main_score
        return figures

    def _tuned(self, tuning: Tuning, model: Path, out: Path, seed: int) -> Path:
        """Fine-tune a bi-encoder, unless its model exists; return the folder of its model."""
        if not (out / MODEL).is_dir():
            settings = [*tuning.settings, *self._start(model, seed)]
            recipe = load_recipe(BiEncoderRecipe, "bi-encoder", tuning.recipe, settings)
            train_bi_encoder(recipe, out, resume=bool(checkpoints(out)))
        return out / MODEL

    def _start(self, model: Path, seed: int) -> list[str]:
        return [f"model={model}", f"seed={seed}", f"device={self.device}"]

    def _open(self, model: Path) -> Embedder:
        """Load a model and make an embedder of it.

        The embedder gets the loaded model, not its folder: for an embedder that was made from a
        folder, the build of an index exports the model to ONNX, which would be useless here.
        """
        bi_encoder = BiEncoder.from_folder(read_folder(model))
        return Embedder(bi_encoder.to(resolve_device(self.device)), precision="fp32")

    def _scores(
        self, kind: Kind, names: Sequence[str], embedder: Embedder, after: str
    ) -> dict[str, float]:
        figures = {}
        for task in distinct_tasks([find_task(kind, name) for name in names]):
            done = evaluate_vectors(task, embedder, self.data)
            figures[f"{task.name} {task.main_metric}, {after}"] = done.main_score
        return figures

    def _speed(self, embedder: Embedder) -> dict[str, float]:
        """Measure texts encoded per second of CPU time, after one unmeasured pass."""
        if not self.recipe.sts:
            return {}
        task = find_task("sts", self.recipe.sts[0])
        names = task.columns
        pairs = read_pairs(self.data / task.path, text1=names.text1, text2=names.text2)
        texts = [pair.text1 for pair in pairs[:_ENCODED]]
        embedder.encode(texts)
        used = time.process_time()
        embedder.encode(texts)
        seconds = max(time.process_time() - used, 1e-9)
        return {"texts encoded per second of processor time": len(texts) / seconds}


def _sizes(model: nn.Module, folder: Path, last: Reading) -> dict[str, float]:
    """Return numbers of parameters, memory of training, and tokens per second of processor time.

    The memory is that of weights, gradients and both moments of Adam in fp32: 16 bytes per
    parameter. All parameters of a pre-training are trained. Processor time does not include the
    time of a GPU.
    """
    trained = sum(each.numel() for each in model.parameters())
    return {
        "parameters of the encoder": sum(e.numel() for e in load_encoder(folder).parameters()),
        "parameters trained": trained,
        "MB of training state": 16 * trained / 1e6,
        "tokens trained on per second of processor time": last["tokens"]
        / last["processor_seconds"],
    }
