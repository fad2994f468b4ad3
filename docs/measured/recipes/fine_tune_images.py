"""Fine-tune a ViT to an image task of mteb: python fine_tune_images.py MODEL TASK FOLDER [STEPS]."""

import sys

import mteb
import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification, Trainer, TrainingArguments

name, task_name, folder, *more = sys.argv[1:]
steps = int(more[0]) if more else 2000
task = mteb.get_task(task_name)
task.load_data()
train, image, label = task.dataset["train"], task.input_column_name, task.label_column_name
processor = AutoImageProcessor.from_pretrained(name)
model = AutoModelForImageClassification.from_pretrained(
    name, num_labels=max(train[label]) + 1, ignore_mismatched_sizes=True
)


def together(rows):
    """Make a batch of rows."""
    pixels = processor([row[image].convert("RGB") for row in rows], return_tensors="pt")
    return {**pixels, "labels": torch.tensor([row[label] for row in rows])}


how = TrainingArguments(
    output_dir=folder, save_strategy="no", report_to=[], remove_unused_columns=False,
    max_steps=steps, per_device_train_batch_size=128, learning_rate=1e-5,
    lr_scheduler_type="cosine", warmup_steps=min(200, steps), weight_decay=0.1,
)  # fmt: skip
Trainer(model=model, args=how, train_dataset=train, data_collator=together).train()
model.save_pretrained(folder)
processor.save_pretrained(folder)
