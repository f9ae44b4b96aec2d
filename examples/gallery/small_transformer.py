"""Train a small transformer to reverse a sequence of tokens."""

import yosegi as ys

TOKENS, LENGTH, WIDTH, HEADS = 12, 10, 32, 2
rng = ys.random.default_rng(0)


def matrix(outputs, inputs):
    return rng.normal((outputs, inputs), dtype=ys.float32) / inputs**0.5


def block():
    """The parameters of one layer."""
    return {
        "norm1": ys.ones(WIDTH, dtype=ys.float32),
        "qkv": matrix(3 * WIDTH, WIDTH),
        "mix": matrix(WIDTH, WIDTH),
        "norm2": ys.ones(WIDTH, dtype=ys.float32),
        "up": matrix(2 * WIDTH, WIDTH),
        "down": matrix(WIDTH, 2 * WIDTH),
    }


params = {
    "tokens": matrix(TOKENS, WIDTH),
    "positions": matrix(LENGTH, WIDTH),
    "blocks": [block(), block()],
    "out": matrix(TOKENS, WIDTH),
}


def attention(p, x):
    qkv = ys.reshape(ys.nn.linear(x, p["qkv"]), (*x.shape[:2], 3, HEADS, WIDTH // HEADS))
    q, k, v = ys.unstack(ys.permute_dims(qkv, (2, 0, 3, 1, 4)))
    heads = ys.nn.scaled_dot_product_attention(q, k, v)
    return ys.nn.linear(ys.reshape(ys.permute_dims(heads, (0, 2, 1, 3)), x.shape), p["mix"])


def model(params, tokens):
    x = params["tokens"][tokens] + params["positions"]
    for p in params["blocks"]:
        x = x + attention(p, ys.nn.rms_norm(x, p["norm1"]))
        x = x + ys.nn.linear(ys.nn.gelu(ys.nn.linear(ys.nn.rms_norm(x, p["norm2"]), p["up"])), p["down"])
    return ys.nn.linear(x, params["out"])


@ys.jit
def step(params, momentum, tokens, rate):
    def loss(params):
        return ys.nn.cross_entropy(model(params, tokens), ys.flip(tokens, axis=1))

    value, gradients = ys.value_and_grad(loss)(params)
    momentum = ys.tree_map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return ys.tree_map(lambda p, m: p - rate * m, params, momentum), momentum, value


momentum = ys.tree_map(ys.zeros_like, params)
for _ in range(300):
    params, momentum, value = step(params, momentum, rng.integers(0, TOKENS, size=(64, LENGTH)), 0.1)

tokens = rng.integers(0, TOKENS, size=(500, LENGTH))
answer = ys.argmax(model(params, tokens), axis=-1)
correct = float(ys.mean(ys.astype(answer == ys.flip(tokens, axis=1), ys.float32)))
print(f"{tokens[0].tolist()} reversed is {answer[0].tolist()}")
print(f"{100 * correct:.1f}% of 5000 new tokens are correct")
assert correct > 0.99
