"""Remove periodic stripes from a picture in the frequency domain.

The stripes of a bad scan are two sharp peaks of the picture's spectrum. The filter finds the peaks outside of the low
frequencies and sets them to zero.
"""

import yosegi as ys


def picture(size):
    """Generate a scene in shades of grey: a sky that darkens upwards, a sun and two hills."""
    y, x = ys.meshgrid(ys.linspace(0, 1, size), ys.linspace(0, 1, size), indexing="ij")
    scene = 0.3 + 0.5 * y
    scene = ys.where(ys.hypot(x - 0.7, y - 0.3) < 0.12, 1.0, scene)
    for centre, height, shade in ((0.3, 0.5, 0.25), (0.75, 0.35, 0.1)):
        ridge = 1 - height * ys.exp(-((x - centre) ** 2) / 0.05)
        scene = ys.where(y > ridge, shade, scene)
    return scene


@ys.jit
def without_stripes(image, keep=8, threshold=100.0):
    """Zero the frequencies above `keep` that are `threshold` times larger than the median of all."""
    spectrum = ys.fft.rfft2(image)
    rows = ys.abs(ys.fft.fftfreq(image.shape[0], d=1 / image.shape[0]))
    columns = ys.fft.rfftfreq(image.shape[1], d=1 / image.shape[1])
    size = ys.abs(spectrum)
    is_peak = (rows[:, None] > keep) & (columns > keep) & (size > threshold * ys.median(size))
    return ys.fft.irfft2(ys.where(is_peak, 0, spectrum), s=image.shape), ys.sum(is_peak)


def psnr(image, reference):
    """The peak signal-to-noise ratio in decibels."""
    return float(-10 * ys.log10(ys.mean((image - reference) ** 2)))


clean = picture(256)
y, x = ys.meshgrid(ys.arange(256), ys.arange(256), indexing="ij")
stripes = 0.2 * ys.sin(2 * ys.pi * (40 * x + 25 * y) / 256)
scanned = clean + stripes
filtered, peaks = without_stripes(scanned)

print(f"scanned  {psnr(scanned, clean):.1f} dB")
print(f"filtered {psnr(filtered, clean):.1f} dB, {int(peaks)} frequency removed")
assert psnr(filtered, clean) > psnr(scanned, clean) + 20
