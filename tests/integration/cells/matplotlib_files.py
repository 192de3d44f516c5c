"""matplotlib draws text with its fonts, and writes PNG, SVG and PDF."""

import matplotlib.pyplot as plt
from matplotlib import font_manager

assert font_manager.findfont("DejaVu Sans").endswith("DejaVuSans.ttf")

figure, axes = plt.subplots(1, 2)
axes[0].plot([1, 2, 3], [2, 3, 5], label="growth α β")
axes[0].set_title(r"$\int_0^5 x^2\,dx$")
axes[0].legend()
axes[1].imshow([[0, 1], [1, 0]], cmap="viridis")

for suffix, start in {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF"}.items():
    figure.savefig(f"/mnt/data/figure.{suffix}")

    with open(f"/mnt/data/figure.{suffix}", "rb") as file:
        assert file.read(8).startswith(start), suffix

plt.close(figure)
print("works")
