#!/usr/bin/env bash
# Lightning 2.6.6: the mean of ones over two ranks is 15/14 where they log 7 and 8 rows.
#
# self.log(name, value, batch_size=rows, sync_dist=True) keeps sum(value * rows) as a float and sum(rows) as an integer.
# Both are averaged over the ranks: 15/2 = 7.5, but the integer 15/2 = 7. So the mean is 7.5/7 = 1.0714 where every value
# was 1. It is right with an even number of rows in total, and with one rank. A torchmetrics.MeanMetric, logged as an
# object, sums both over the ranks and gives 1.
#
# One would guess: the mean of equal values is that value.
# Ends with 0 as long as Lightning behaves so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 lightning==2.6.6 torchmetrics==1.9.0
cat > "$folder/mean.py" <<'PYTHON'
import sys

import lightning.pytorch as pl
import torch
import torchmetrics


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.ones = torch.nn.Linear(1, 1), torchmetrics.MeanMetric()

    def validation_step(self, batch):
        rows = len(batch[0])
        self.log("logged", torch.tensor(1.0), batch_size=rows, sync_dist=True)
        self.ones.update(torch.tensor(1.0), weight=rows)
        self.log("metric", self.ones)

    def val_dataloader(self):
        rows = 7 + self.global_rank  # a sharded loader of 15 rows gives 7 and 8
        data = torch.utils.data.TensorDataset(torch.ones(rows, 1))
        return torch.utils.data.DataLoader(data, batch_size=rows)


if __name__ == "__main__":
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", use_distributed_sampler=False, logger=False,
        enable_progress_bar=False, enable_checkpointing=False,
    )
    (found,) = trainer.validate(Module(), verbose=False)
    if trainer.global_rank == 0:
        print(f"lightning {pl.__version__}: self.log gives {found['logged']:.6f}, MeanMetric {found['metric']:.6f}")
        sys.exit(abs(found["logged"] - 15 / 14) > 1e-6 or abs(found["metric"] - 1) > 1e-6)
PYTHON
"$folder/venv/bin/python" "$folder/mean.py" 2>"$folder/errors" || { tail -5 "$folder/errors"; exit 1; }
