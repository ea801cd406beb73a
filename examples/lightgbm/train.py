"""Trains LightGBM from Python, on rows that are divided among the ranks.

    cargo build --release -p comm-cli -p lightgbm
    COMM_LIGHTGBM_LIBRARY=target/release/libcomm_lightgbm.so \\
        target/release/commctl run -n 2 -- python3 examples/lightgbm/train.py
"""

import hashlib

import lightgbm
import numpy

import comm_lightgbm

ROWS, HELD_OUT, FEATURES = 20_000, 5_000, 10


def generate():
    random = numpy.random.default_rng(1)
    rows = random.uniform(-1, 1, (ROWS + HELD_OUT, FEATURES))
    score = rows[:, 0] * rows[:, 1] + rows[:, 2] * rows[:, 3] / 2 + numpy.sin(rows[:, 0]) / 2
    return rows, score + random.uniform(-0.2, 0.2, len(rows)) > 0


def main():
    rows, labels = generate()
    with comm_lightgbm.connect() as network:
        own = slice(ROWS * network.rank // network.size, ROWS * (network.rank + 1) // network.size)
        parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1, **network.parameters}
        data = lightgbm.Dataset(rows[own], labels[own])
        model = lightgbm.train(parameters, data, num_boost_round=30)
    accuracy = numpy.mean((model.predict(rows[ROWS:]) > 0.5) == labels[ROWS:])
    trees = model.model_to_string().split("\nparameters:")[0]
    digest = hashlib.sha256(trees.encode()).hexdigest()[:16]
    print(f"rank {network.rank} of {network.size}: held-out accuracy {accuracy:.4f}, trees {digest}", flush=True)


if __name__ == "__main__":
    main()
