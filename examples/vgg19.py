"""VGG-19 in one launch: 16 3x3 convolutions in five blocks, each with its pooling, and three linear layers.
True sizes.

`block` alone (1 to 5) gives the convolutions and the pooling of one block.
"""

import tilegen as tg

DEPTH = (2, 2, 4, 4, 4)


@tg.spec
def vgg19(B=1, HW=224, C=64, hidden=4096, classes=1000, block=0, dtype="float16"):
    widths = [min(C * 2**n, 8 * C) for n in range(5)]
    first = max(0, block - 1)
    x = tg.input("x", (B, HW >> first, HW >> first, widths[first - 1] if first else 3), dtype)
    for n in range(5) if not block else [first]:
        for layer in range(DEPTH[n]):
            w = tg.weight(f"w{n + 1}_{layer + 1}", (widths[n], 3, 3, x.shape[3]), dtype)
            b = tg.weight(f"b{n + 1}_{layer + 1}", (widths[n],), dtype)
            x = tg.relu(tg.conv2d(x, w, b, padding=1, name=f"conv{n + 1}_{layer + 1}"))
        x = tg.max_pool2d(x, 2, name=f"pool{n + 1}")
    if block:
        return x
    x = tg.flatten(x)  # (B, 7·7·512), channels last
    for n, width in enumerate((hidden, hidden, classes)):
        w = tg.weight(f"fc{n + 1}_w", (width, x.shape[1]), dtype)
        b = tg.weight(f"fc{n + 1}_b", (width,), dtype)
        x = tg.linear(x, w, b, name=f"fc{n + 1}")
        if n < 2:
            x = tg.relu(x, name=f"fc{n + 1}_y")
    return x


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
