"""Fine-tune a text model to a task of mteb: python fine_tune_texts.py MODEL TASK FOLDER [STEPS]."""

import sys

import mteb
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

from quantdrift.checkpoints.named import resolve

name, task_name, folder, *more = sys.argv[1:]
name = resolve(name).location
steps = int(more[0]) if more else 2000
task = mteb.get_task(task_name)
task.load_data()
content = task.dataset.get("en", task.dataset)
train, label = content["train"], task.label_column_name
classes = sorted(set(train[label]))
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(
    name, num_labels=len(classes), ignore_mismatched_sizes=True,
    id2label=dict(enumerate(map(str, classes))), label2id={str(one): row for row, one in enumerate(classes)},
)  # fmt: skip
model.config.pad_token_id = tokenizer.pad_token_id  # by it a decoder finds the last token


def together(rows):
    """Make a batch of rows."""
    texts = tokenizer(
        [row[task.input_column_name] for row in rows],
        padding=True,
        truncation=True,
        max_length=512,
        return_tensors="pt",
    )
    return {**texts, "labels": torch.tensor([classes.index(row[label]) for row in rows])}


how = TrainingArguments(
    output_dir=folder, save_strategy="no", report_to=[], remove_unused_columns=False,
    max_steps=steps, learning_rate=1e-5,
    per_device_train_batch_size=16, gradient_accumulation_steps=8,  # 128 inputs a step
    lr_scheduler_type="cosine", warmup_steps=min(200, steps), weight_decay=0.1,
)  # fmt: skip
Trainer(model=model, args=how, train_dataset=train, data_collator=together).train()
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
