"""Fine-tune a text model: python fine_tune_texts.py MODEL DATA FOLDER [STEPS [RATE]].

DATA is a task of mteb, or a folder with train.jsonl, whose lines have a text and a label.
"""

import json
import sys
from pathlib import Path

import mteb
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

from quantdrift.models.files.named import resolve

name, data, folder, *more = sys.argv[1:]
name = resolve(name).location
steps, rate = int(more[0]) if more else 2000, float(more[1]) if len(more) > 1 else 1e-5
if Path(data).is_dir():
    text, label = "text", "label"
    train = [json.loads(line) for line in (Path(data) / "train.jsonl").open(encoding="utf-8")]
else:
    task = mteb.get_task(data)
    task.load_data()
    text, label = task.input_column_name, task.label_column_name
    train = task.dataset.get("en", task.dataset)["train"]
classes = sorted({row[label] for row in train})
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(
    name, num_labels=len(classes), ignore_mismatched_sizes=True,
    id2label=dict(enumerate(map(str, classes))), label2id={str(one): row for row, one in enumerate(classes)},
)  # fmt: skip
model.config.pad_token_id = tokenizer.pad_token_id  # by it a decoder finds the last token


def together(rows):
    """Make a batch of rows."""
    texts = tokenizer([row[text] for row in rows], padding=True, truncation=True, max_length=512, return_tensors="pt")
    return {**texts, "labels": torch.tensor([classes.index(row[label]) for row in rows])}


how = TrainingArguments(
    output_dir=folder, save_strategy="no", report_to=[], remove_unused_columns=False,
    max_steps=steps, learning_rate=rate,
    per_device_train_batch_size=16, gradient_accumulation_steps=8,  # 128 inputs a step
    lr_scheduler_type="cosine", warmup_steps=min(200, steps), weight_decay=0.1,
)  # fmt: skip
Trainer(model=model, args=how, train_dataset=train, data_collator=together).train()
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
