"""Images: classifiers, segmentation, generation, convolutions over time, and the preparation of pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

import yosegi as ys

from .program import RNG, add_function, add_inference, add_training, both, integers, normal


def vit(lib: Any) -> Any:
    """A vision transformer with patches of 16 × 16."""
    m, rng = lib.nn, lib.rng

    class Block(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.n1, self.n2 = m.LayerNorm(192), m.LayerNorm(192)
            self.qkv, self.o = m.Linear(192, 576, **rng), m.Linear(192, 192, **rng)
            self.f1, self.f2 = m.Linear(192, 768, **rng), m.Linear(768, 192, **rng)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = lib.permute(lib.xp.reshape(self.qkv(self.n1(x)), (batch, length, 3, 3, 64)), (2, 0, 3, 1, 4))
            seen = lib.permute(lib.attention(parts[0], parts[1], parts[2]), (0, 2, 1, 3))
            x = x + self.o(lib.xp.reshape(seen, (batch, length, 192)))
            return x + self.f2(lib.F.gelu(self.f1(self.n2(x))))

    class ViT(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.patch = m.Conv2d(3, 192, 16, 16, **rng)
            self.cls, self.pos = m.Embedding(1, 192, **rng), m.Embedding(197, 192, **rng)
            self.blocks = m.Sequential(*[Block() for _ in range(6)])
            self.n, self.h = m.LayerNorm(192), m.Linear(192, 100, **rng)

        def forward(self, x: Any) -> Any:
            x = lib.permute(lib.xp.reshape(self.patch(x), (x.shape[0], 192, 196)), (0, 2, 1))
            first = lib.xp.broadcast_to(self.cls.weight, (x.shape[0], 1, 192))
            x = self.blocks(lib.xp.concat([first, x], axis=1) + self.pos.weight)
            return self.h(self.n(x)[:, 0])

    return ViT()


def mobilenet(lib: Any) -> Any:
    """MobileNetV2's inverted residuals, with fewer of them."""
    m, rng = lib.nn, lib.rng

    class Residual(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self, given: int, made: int, stride: int, times: int) -> None:
            m.Module.__init__(self)
            inner, self.same = given * times, stride == 1 and given == made
            self.a = m.Conv2d(given, inner, 1, bias=False, **rng)
            self.b = m.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False, **rng)
            self.c = m.Conv2d(inner, made, 1, bias=False, **rng)
            self.na, self.nb, self.nc = m.BatchNorm2d(inner), m.BatchNorm2d(inner), m.BatchNorm2d(made)

        def forward(self, x: Any) -> Any:
            y = lib.F.relu6(self.na(self.a(x)))
            y = self.nc(self.c(lib.F.relu6(self.nb(self.b(y)))))
            return x + y if self.same else y

    class MobileNet(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.stem, self.n = m.Conv2d(3, 32, 3, 2, 1, bias=False, **rng), m.BatchNorm2d(32)
            plan = [(32, 16, 1, 1), (16, 24, 2, 6), (24, 24, 1, 6), (24, 32, 2, 6), (32, 32, 1, 6), (32, 64, 2, 6),
                    (64, 64, 1, 6), (64, 96, 1, 6), (96, 160, 2, 6), (160, 160, 1, 6), (160, 320, 1, 6)]  # fmt: skip
            self.blocks = m.Sequential(*[Residual(*p) for p in plan])
            self.last, self.nl, self.h = (
                m.Conv2d(320, 1280, 1, bias=False, **rng),
                m.BatchNorm2d(1280),
                m.Linear(1280, 100, **rng),
            )

        def forward(self, x: Any) -> Any:
            x = self.blocks(lib.F.relu6(self.n(self.stem(x))))
            return self.h(lib.xp.mean(lib.F.relu6(self.nl(self.last(x))), axis=(2, 3)))

    return MobileNet()


def unet(lib: Any) -> Any:
    """A small UNet with group norms and SiLU; one step up by a transposed convolution, one by interpolation."""
    m, rng = lib.nn, lib.rng

    class Double(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self, given: int, made: int) -> None:
            m.Module.__init__(self)
            self.a, self.b = m.Conv2d(given, made, 3, padding=1, **rng), m.Conv2d(made, made, 3, padding=1, **rng)
            self.na, self.nb = m.GroupNorm(8, made), m.GroupNorm(8, made)

        def forward(self, x: Any) -> Any:
            return lib.F.silu(self.nb(self.b(lib.F.silu(self.na(self.a(x))))))

    class UNet(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.d1, self.d2, self.mid = Double(3, 32), Double(32, 64), Double(64, 128)
            self.up = m.ConvTranspose2d(128, 64, 2, 2, **rng)
            self.u2, self.u1, self.out = Double(128, 64), Double(96, 32), m.Conv2d(32, 3, 1, **rng)

        def forward(self, x: Any) -> Any:
            a = self.d1(x)
            b = self.d2(lib.F.max_pool2d(a, 2))
            y = self.up(self.mid(lib.F.max_pool2d(b, 2)))
            y = self.u2(lib.xp.concat([y, b], axis=1))
            y = lib.F.interpolate(y, scale_factor=2.0, mode="bilinear")
            return self.out(self.u1(lib.xp.concat([y, a], axis=1)))

    return UNet()


def vae(lib: Any) -> Any:
    """A convolutional variational autoencoder; its noise is given."""
    m, rng = lib.nn, lib.rng

    class VAE(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.e1, self.e2 = m.Conv2d(1, 32, 3, 2, 1, **rng), m.Conv2d(32, 64, 3, 2, 1, **rng)
            self.mean, self.spread = m.Linear(3136, 16, **rng), m.Linear(3136, 16, **rng)
            self.f = m.Linear(16, 3136, **rng)
            self.u1, self.u2 = m.ConvTranspose2d(64, 32, 4, 2, 1, **rng), m.ConvTranspose2d(32, 1, 4, 2, 1, **rng)

        def forward(self, x: Any, noise: Any) -> Any:
            h = lib.F.relu(self.e2(lib.F.relu(self.e1(x))))
            h = lib.xp.reshape(h, (x.shape[0], 3136))
            mean, spread = self.mean(h), self.spread(h)
            z = mean + lib.xp.exp(spread / 2) * noise
            y = lib.xp.reshape(lib.F.relu(self.f(z)), (x.shape[0], 64, 7, 7))
            y = self.u2(lib.F.relu(self.u1(y)))
            apart = -lib.xp.mean(1 + spread - mean**2 - lib.xp.exp(spread)) / 2
            return lib.F.binary_cross_entropy_with_logits(y, x) + 0.01 * apart

    return VAE()


def generator(lib: Any) -> Any:
    """DCGAN's generator and discriminator, both trained by one sum of losses."""
    m, rng = lib.nn, lib.rng

    class GAN(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.g = m.Sequential(
                m.ConvTranspose2d(64, 128, 4, 1, 0, bias=False, **rng), m.BatchNorm2d(128), m.ReLU(),
                m.ConvTranspose2d(128, 64, 4, 2, 1, bias=False, **rng), m.BatchNorm2d(64), m.ReLU(),
                m.ConvTranspose2d(64, 32, 4, 2, 1, bias=False, **rng), m.BatchNorm2d(32), m.ReLU(),
                m.ConvTranspose2d(32, 3, 4, 2, 1, bias=False, **rng), m.Tanh(),
            )  # fmt: skip
            self.d = m.Sequential(
                m.Conv2d(3, 32, 4, 2, 1, bias=False, **rng), m.LeakyReLU(0.2),
                m.Conv2d(32, 64, 4, 2, 1, bias=False, **rng), m.GroupNorm(8, 64), m.LeakyReLU(0.2),
                m.Conv2d(64, 128, 4, 2, 1, bias=False, **rng), m.GroupNorm(8, 128), m.LeakyReLU(0.2),
                m.Conv2d(128, 1, 4, 1, 0, bias=False, **rng),
            )  # fmt: skip

        def forward(self, x: Any, noise: Any) -> Any:
            fake = self.g(noise)
            return lib.xp.mean(lib.F.softplus(self.d(fake))) + lib.xp.mean(lib.F.softplus(-self.d(x)))

    return GAN()


def wavenet(lib: Any) -> Any:
    """Dilated causal convolutions over time, with gates and residuals."""
    m, rng = lib.nn, lib.rng

    class WaveNet(m.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            m.Module.__init__(self)
            self.first, self.last = m.Conv1d(1, 32, 1, **rng), m.Conv1d(32, 64, 1, **rng)
            both = [(m.Conv1d(32, 64, 2, dilation=2**n, **rng), m.Conv1d(32, 32, 1, **rng)) for n in range(8)]
            self.dilated, self.mixed = (m.Sequential(*c) for c in zip(*both, strict=True))

        def forward(self, x: Any) -> Any:
            x, total = self.first(x), 0
            for n in range(8):
                padding = (2**n, 0) if lib.xp is torch else ((0, 0), (0, 0), (2**n, 0))
                y = self.dilated[n]((F if lib.xp is torch else ys).pad(x, padding))
                y = self.mixed[n](lib.xp.tanh(y[:, :32]) * lib.F.sigmoid(y[:, 32:]))
                x, total = x + y, total + y
            return self.last(lib.F.relu(total))

    return WaveNet()


def add_models() -> None:
    add_inference("Vision transformer, forward", *both(vit), [normal(4, 3, 224, 224)])
    nets = both(mobilenet)
    for batch in (1, 8):
        add_inference(f"MobileNetV2, batch {batch}, forward", *nets, [normal(batch, 3, 160, 160)])
    add_inference("UNet, forward", *both(unet), [normal(4, 3, 64, 64)])
    adam = (lambda m: ys.optim.Adam(m, lr=1e-4), lambda p: torch.optim.Adam(p, 1e-4))
    losses = (lambda m, x, y: ys.nn.mse_loss(m(x), y), lambda m, x, y: F.mse_loss(m(x), y))
    add_training("UNet, training", both(unet), losses, adam, [normal(4, 3, 64, 64), normal(4, 3, 64, 64)])
    given = (lambda m, *batch: m(*batch),) * 2
    pixels = RNG.random((64, 1, 28, 28), "float32")
    add_training("Convolutional VAE, training", both(vae), given, adam, [pixels, normal(64, 16)])
    add_training("DCGAN, training", both(generator), given, adam, [normal(32, 3, 32, 32), normal(32, 64, 1, 1)])
    words = (lambda m, x, y: ys.nn.cross_entropy(m(x), y, axis=1), lambda m, x, y: F.cross_entropy(m(x), y))
    add_training("WaveNet, training", both(wavenet), words, adam, [normal(4, 1, 2048), integers(64, 4, 2048)])


def augmented(xp: Any, take: Any) -> Any:
    """Flips, then an affine map with bilinear samples, then the change of brightness and contrast."""

    def augment(images: Any, flips: Any, maps: Any, gains: Any) -> Any:
        count, channels, height, width = images.shape
        images = xp.where(flips[:, None, None, None], xp.flip(images, (3,)), images)
        rows, columns = (xp.linspace(-1, 1, n, dtype=images.dtype) for n in (height, width))
        at = xp.stack([xp.broadcast_to(columns, (height, width)), xp.broadcast_to(rows[:, None], (height, width)),
                       xp.ones((height, width), dtype=images.dtype)])  # fmt: skip
        places = maps @ xp.reshape(at, (3, height * width))
        x, y = (places[:, 0] + 1) * ((width - 1) / 2), (places[:, 1] + 1) * ((height - 1) / 2)
        left, top = xp.floor(x), xp.floor(y)
        flat, made = xp.reshape(images, (count, channels, height * width)), 0
        for dy in (0, 1):
            for dx in (0, 1):
                i, j = top + dy, left + dx
                inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
                weight = (1 - abs(x - j)) * (1 - abs(y - i))
                index = xp.clip(i, 0, height - 1) * width + xp.clip(j, 0, width - 1)
                weight = xp.where(inside, weight, xp.zeros_like(weight))
                made = made + take(flat, index) * weight[:, None]
        made = xp.reshape(made, images.shape)
        middle = xp.mean(made, axis=(1, 2, 3), keepdims=True)
        return xp.clip((made - middle) * gains[:, None, None, None] + middle, 0, 1)

    return augment


def prepared(xp: Any, f: Any, permute: Any, single: Any) -> Any:
    """Bytes of cameras to the input of a network: resized, centred, channels first."""

    def prepare(images: Any, mean: Any, spread: Any) -> Any:
        x = permute(single(images), (0, 3, 1, 2)) / 255
        x = f.interpolate(x, (128, 128), mode="bilinear")
        return (x[:, :, 8:120, 8:120] - mean[:, None, None]) / spread[:, None, None]

    return prepare


def add_pictures() -> None:
    images, flips = RNG.random((32, 3, 64, 64), "float32"), RNG.random(32) < 0.5
    maps = normal(32, 2, 3, scale=0.1)
    maps[:, 0, 0] += 1
    maps[:, 1, 1] += 1

    def our_take(x: Any, index: Any) -> Any:
        at = ys.broadcast_to(index.astype(ys.int64)[:, None], (*x.shape[:2], index.shape[1]))
        return ys.take_along_axis(x, at, axis=2)

    def their_take(x: Any, index: Any) -> Any:
        return torch.gather(x, 2, index.long()[:, None].expand(-1, x.shape[1], -1))

    gains = RNG.uniform(0.5, 1.5, 32).astype("float32")
    arrays = [images, flips, maps, gains]
    add_function(
        "Image augmentation, 32 of 64 × 64", augmented(ys, our_take), augmented(torch, their_take), arrays, 1e-3
    )
    raw = RNG.integers(0, 256, (8, 240, 320, 3), "uint8")
    constants = RNG.random((2, 3), "float32") + 0.1
    ours = prepared(ys, ys.nn, ys.permute_dims, lambda x: x.astype(ys.float32))
    theirs = prepared(torch, F, torch.permute, lambda x: x.to(torch.get_default_dtype()))
    add_function("Bytes of images to inputs, 8 of 240 × 320", ours, theirs, [raw, constants[0], constants[1]])


def add_all() -> None:
    add_models()
    add_pictures()
