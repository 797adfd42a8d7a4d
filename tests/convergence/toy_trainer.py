#!/usr/bin/python3
"""Someone else's trainer: linear regression, with its own idea of 1-bit gradients. Knows nothing of tightwire. The codec
comes by the environment, as CODEC; what goes wrong on purpose, as FAULT."""
import json
import os
import random as random_numbers
import signal
import sys
import time

codec, fault = os.environ["CODEC"], os.environ.get("FAULT", "")
seed = int(sys.argv[sys.argv.index("--seed") + 1])
if log := os.environ.get("LOG"):
    with open(log, "a") as file:
        file.write(f"{codec} {seed}\n")
if fault == "exit":
    sys.exit("the toy gave up")
if fault == "signal":
    os.kill(os.getpid(), signal.SIGSEGV)
if fault == "sleep":
    time.sleep(60)

WIDTH, SAMPLES, BATCH = 8, 100, 16
random = random_numbers.Random(seed)
inputs = [[random.gauss(0, 1) for _ in range(WIDTH)] for _ in range(SAMPLES)]
truth = [random.gauss(0, 1) for _ in range(WIDTH)]
targets = [sum(x * w for x, w in zip(row, truth, strict=True)) + random.gauss(0, 0.1) for row in inputs]
weights, residual, sent = [0.0] * WIDTH, [0.0] * WIDTH, 0


def error(row):
    """Of the guess for a sample."""
    return sum(x * w for x, w in zip(inputs[row], weights, strict=True)) - targets[row]


print("toy trainer, version 1")  # trainers print all kinds of things
for step in range(150):
    rows = random.sample(range(SAMPLES), BATCH)
    errors = [(row, error(row)) for row in rows]
    gradient = [sum(e * inputs[row][i] for row, e in errors) / BATCH for i in range(WIDTH)]
    sent += 4 * WIDTH
    if codec == "sign":
        wanted = [g + (0 if fault == "no-feedback" else r) for g, r in zip(gradient, residual, strict=True)]
        size = sum(map(abs, wanted)) / WIDTH
        gradient = [size if w > 0 else -size for w in wanted]
        residual = [w - g for w, g in zip(wanted, gradient, strict=True)]
        sent -= 4 * WIDTH - 2
    rate = 0.1 if step < 75 else 0.02
    weights = [w - rate * g for w, g in zip(weights, gradient, strict=True)]
    if step % 15 == 14:
        loss = sum(error(row) ** 2 for row in range(SAMPLES)) / SAMPLES
        print(json.dumps({"iteration": step + 1, "train_loss": loss, "sent": sent}))
if fault == "silent":
    sys.exit()
if fault == "diverged":
    loss = float("nan")
print("{\"half a line\": ")
print(json.dumps({"test_loss": loss}))
