"""ResNet-50 in one launch: 3, 4, 6 and 3 bottlenecks of a 1x1, a 3x3 and a 1x1 convolution at 56x56x256 …
7x7x2048, stem and classifier. depth=101 and 152 have more of them in the third stage and the second.

Batch norms are folded into weights and biases, as for inference. `stage` alone (1 to 4) gives that stage's
bottlenecks without the rest.
"""

import tilegen as tg

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def conv(x, name, channels, size=1, stride=1):
    """Convolution with bias; padding keeps the size at stride 1."""
    dtype = x.dtype
    w = tg.weight(f"{name}_w", (channels, size, size, x.shape[3]), dtype)
    b = tg.weight(f"{name}_b", (channels,), dtype)
    return tg.conv2d(x, w, b, stride=stride, padding=size // 2, name=name)


def bottleneck(x, name, channels, stride=1):
    """relu(conv1x1(relu(conv3x3(relu(conv1x1(x))))) + x), with a 1x1 beside it where the shape changes."""
    h = tg.relu(conv(x, f"{name}a", channels), name=f"{name}h")
    h = tg.relu(conv(h, f"{name}b", channels, size=3, stride=stride), name=f"{name}i")
    changes = stride != 1 or x.shape[3] != 4 * channels
    beside = conv(x, f"{name}s", 4 * channels, stride=stride) if changes else x
    return tg.relu(conv(h, f"{name}c", 4 * channels) + beside, name=f"{name}y")


@tg.spec
def resnet50(B=1, HW=224, C=64, classes=1000, stage=0, depth=50, dtype="float16"):
    counts = BLOCKS[depth]
    if stage:
        scale = 2 ** (stage - 1)
        x = tg.input("x", (B, HW // 4 // scale, HW // 4 // scale, 4 * C * scale), dtype)
        for n in range(counts[stage - 1]):
            x = bottleneck(x, f"s{stage}n{n}", C * scale)
        return x
    x = tg.input("x", (B, HW, HW, 3), dtype)
    x = tg.relu(conv(x, "stem", C, size=7, stride=2), name="stem_y")
    x = tg.max_pool2d(x, 3, stride=2, padding=1, name="pool")
    for s, count in enumerate(counts):
        for n in range(count):
            x = bottleneck(x, f"s{s + 1}n{n}", C * 2**s, stride=2 if n == 0 and s > 0 else 1)
    w = tg.weight("fc_w", (classes, x.shape[3]), dtype)
    b = tg.weight("fc_b", (classes,), dtype)
    return tg.linear(tg.global_avg_pool(x, name="mean"), w, b, name="fc")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
