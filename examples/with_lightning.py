# Lightning: a callback attaches to the DistributedDataParallel of its strategy. Runs under torchrun --nproc-per-node 2.
import os

import lightning
import torch
import tightwire.torch


class Compressed(lightning.Callback):
    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.sync = tightwire.torch.attach(trainer.strategy.model, "int8:block=256")


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[0][:, :10].argmax(1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(2560, 32)), batch_size=64)
compressed = Compressed()
trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=int(os.environ["WORLD_SIZE"]), max_epochs=1, callbacks=[compressed],
                            logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Classifier(), data)
compressed.sync.commit()
sent = compressed.sync.statistics()
assert sent.sent_bytes < 0.6 * sent.gradient_bytes, "compressed"
if trainer.is_global_zero:
    print(f"sent {sent.sent_bytes} bytes per step instead of {sent.gradient_bytes}")
