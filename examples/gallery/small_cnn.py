"""Train a convolutional network on the handwritten digits of scikit-learn, with Adam written as three lines."""

from sklearn.datasets import load_digits

import yosegi as ys

digits = load_digits()
images = ys.asarray(digits.images / 16, dtype=ys.float32)[:, None, :, :]  # (1797, 1, 8, 8)
labels = ys.asarray(digits.target)
rng = ys.random.default_rng(0)
train, test = ys.split(rng.permutation(len(labels)), [1408])


def weight(*shape):
    fan_in = shape[1] * (shape[2] * shape[3] if len(shape) == 4 else 1)
    return rng.normal(shape, dtype=ys.float32) * (2 / fan_in) ** 0.5


params = {
    "conv1": (weight(16, 1, 3, 3), ys.zeros(16, dtype=ys.float32)),
    "conv2": (weight(32, 16, 3, 3), ys.zeros(32, dtype=ys.float32)),
    "out": (weight(10, 32 * 4 * 4), ys.zeros(10, dtype=ys.float32)),
}


def model(params, images):
    x = ys.nn.relu(ys.nn.conv2d(images, *params["conv1"], padding="same"))
    x = ys.nn.relu(ys.nn.conv2d(x, *params["conv2"], padding="same"))
    x = ys.nn.max_pool2d(x, 2)
    return ys.nn.linear(ys.reshape(x, (x.shape[0], -1)), *params["out"])


def loss(params, images, labels):
    return ys.nn.cross_entropy(model(params, images), labels)


@ys.jit
def step(params, mean, square, images, labels, rate):
    """One step of Adam, with bias correction in the rate."""
    value, gradients = ys.value_and_grad(loss)(params, images, labels)
    mean = ys.tree_map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradients)
    square = ys.tree_map(lambda s, g: 0.99 * s + 0.01 * g**2, square, gradients)
    params = ys.tree_map(lambda p, m, s: p - rate * m / (ys.sqrt(s) + 1e-8), params, mean, square)
    return params, mean, square, value


mean = square = ys.tree_map(ys.zeros_like, params)
count = 0
for _ in range(6):
    for batch in ys.split(rng.permutation(train), 22):
        count += 1
        rate = 2e-3 * (1 - 0.99**count) ** 0.5 / (1 - 0.9**count)
        params, mean, square, value = step(params, mean, square, images[batch], labels[batch], rate)

accuracy = ys.mean(ys.astype(ys.argmax(model(params, images[test]), axis=1) == labels[test], ys.float32))
print(f"{100 * float(accuracy):.0f}% of the test images are recognised")
assert float(accuracy) > 0.96
