"""The tasks of this package for mteb; importing this module generates no data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset  # type: ignore[import-untyped]  # it ships no types
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.timing import TimingStack

from quantdrift_tasks import python_docs


class _Generated:
    """A task whose data are generated on loading."""

    data_loaded: bool
    metadata: TaskMetadata

    def load_data(self, num_proc: int | None = None, *, timer: TimingStack | None = None, **kwargs: Any) -> None:
        """Generate the data, once."""
        if self.data_loaded:
            return
        with (timer or TimingStack())("Data loading", log_message=f"Generating {self.metadata.name}..."):
            self.dataset = self.generated()  # type: ignore[attr-defined]  # of the task
            self.dataset_transform(num_proc=num_proc)  # type: ignore[attr-defined]  # likewise
        self.data_loaded = True


class PythonDocsRetrieval(_Generated, AbsTaskRetrieval):
    """Find the rest of a docstring from its first paragraph, in Python's standard library.

    The data come from the running Python, so nothing is downloaded. The dataset's revision names that Python: mteb
    reuses a stored result only if the revision is the same.
    """

    metadata = TaskMetadata(
        name=python_docs.NAME,
        description=(
            "Given the first paragraph of a docstring of the Python standard library, find the "
            "rest of that docstring. Generated from the sources of the running Python."
        ),
        # No such repository is on the hub: `load_data` never looks there.
        dataset={"path": "quantdrift/PythonDocsRetrieval", "revision": python_docs.REVISION},
        reference="https://docs.python.org/3/library/index.html",
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
        # From Python's first release to that of the oldest Python this package runs on.
        date=("1991-02-20", "2022-10-24"),
        domains=["Programming", "Written"],
        task_subtypes=["Code retrieval"],
        # mteb's list of licences has no entry for the PSF's; it takes an address instead.
        license="https://docs.python.org/3/license.html",
        annotations_creators="derived",
        dialect=[],
        sample_creation="found",
        bibtex_citation="",
        # mteb builds the type of this dictionary at run time, where mypy cannot follow.
        prompt={  # type: ignore[arg-type]
            "query": "Given the summary of a Python docstring, retrieve the rest of the docstring"
        },
    )

    def generated(self) -> Any:
        """Make the data."""
        data = python_docs.load()
        part: Any = {
            "corpus": _as_dataset(data.document_ids, data.documents),
            "queries": _as_dataset(data.query_ids, data.queries),
            "relevant_docs": {q: dict(grades) for q, grades in data.qrels.items()},
            "top_ranked": None,
        }
        return {"default": {data.split: part}}


class PythonDocsModules(_Generated, AbsTaskClassification):
    """Tell which package of Python's standard library a docstring is from; the data come from the running Python."""

    metadata = TaskMetadata(
        **{
            **PythonDocsRetrieval.metadata.model_dump(),
            "name": python_docs.MODULES,
            "description": (
                "Given a docstring of the Python standard library, name the package that it is from, of the 16 with "
                "the most docstrings. Generated from the sources of the running Python."
            ),
            "dataset": {"path": "quantdrift/PythonDocsModules", "revision": python_docs.REVISION},
            "type": "Classification",
            "category": "t2c",
            "main_score": "accuracy",
            "task_subtypes": ["Topic classification"],
            "prompt": "Given a Python docstring, name the package that it is from",
        }
    )
    n_experiments = 10

    def generated(self) -> Any:
        """Make the data."""
        data = python_docs.load_modules()
        parts = {"train": data.train, "test": data.test}
        return DatasetDict(
            {
                name: Dataset.from_dict({"text": list(part.inputs), "label": list(part.labels or ())})
                for name, part in parts.items()
                if part is not None
            }
        )


class Flickr30k4000(_Generated, AbsTaskRetrieval):
    """Find the image of a caption, with as many of both as in the paper, whose own choice is not known.

    Images are the first 4,000 of Flickr30k in the order of their files' names; queries are the first captions of the
    first 2,000 of them.
    """

    metadata = TaskMetadata(
        name="Flickr30k4000",
        description="The first 4,000 images of Flickr30k by file name, and the first caption of the first 2,000",
        dataset={"path": "lmms-lab/flickr30k", "revision": "0d6d9049be2e08261be315e731e0d8054c1d1c03"},
        type="Any2AnyRetrieval",
        category="t2i",
        modalities=["text", "image"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def generated(self) -> Any:
        """Select the data."""
        whole = load_dataset(**self.metadata.dataset, split="test")
        names = whole["filename"][:]
        rows = whole.select(sorted(range(len(names)), key=names.__getitem__)[:4000])
        ids, asked = rows["filename"][:], rows["caption"][:2000]
        part: Any = {
            "corpus": rows.select_columns(["image"]).add_column("id", ids),
            "queries": _as_dataset([f"{name}#0" for name in ids[:2000]], [captions[0] for captions in asked]),
            "relevant_docs": {f"{name}#0": {name: 1} for name in ids[:2000]},
            "top_ranked": None,
        }
        return {"default": {"test": part}}


# --- the paper's image tasks that mteb does not have ----------------------------------------------


def _of_images(called: str, path: str, about: str, *, split: str = "test", **where: str) -> type[AbsTaskClassification]:
    """Make a classification of images on the hub, in the columns image and label."""
    metadata = TaskMetadata(
        name=called,
        description=about,
        dataset={"path": path, "revision": "main", **where},  # type: ignore[typeddict-item]  # as above
        type="ImageClassification",
        category="i2c",
        modalities=["image"],
        eval_splits=[split],
        eval_langs=["eng-Latn"],
        main_score="accuracy",
    )
    return type(
        called, (AbsTaskClassification,), {"__module__": __name__, "metadata": metadata, "input_column_name": "image"}
    )


IMAGES = (
    _of_images("EMNISTLetters", "tanganke/emnist_letters", "Handwritten letters of EMNIST"),
    _of_images("FashionMNIST", "zalando-datasets/fashion_mnist", "Clothes in grey, of ten kinds"),
    _of_images("KMNIST", "tanganke/kmnist", "Ten letters of the Japanese cursive script"),
    _of_images("RenderedSST2Images", "nateraw/rendered-sst2", "Sentences of reviews as pictures, positive or negative"),
    _of_images("SUN397Half", "tanganke/sun397", "SUN397 in the split with as many images in either part"),
    _of_images("SVHN", "ufldl-stanford/svhn", "House numbers of street views", name="cropped_digits"),
    _of_images("TinyImageNet", "zh-plus/tiny-imagenet", "Pictures of 200 classes, 64 pixels wide", split="valid"),
)
"""Names and splits are those of the literature on task arithmetic."""

TASKS = (PythonDocsRetrieval, PythonDocsModules, Flickr30k4000, *IMAGES)
"""Every task of this package."""


def _as_dataset(ids: Sequence[str], texts: Sequence[str]) -> Dataset:
    return Dataset.from_dict({"id": list(ids), "text": list(texts)})
