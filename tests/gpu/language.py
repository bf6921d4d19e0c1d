"""Programs of words besides the ops of layers: numbers of rows, columns beside each other, rows of tables,
images that grow and shrink, products of any width. Compiled everywhere, run on the emulator and on a GPU."""

from __future__ import annotations

import tilegen as tg
from tests.gpu.gemms import Case

REDUCTIONS = {"sum": tg.sum, "mean": tg.mean, "max": tg.max, "min": tg.min, "logsumexp": tg.logsumexp}


@tg.spec
def reduced(M=37, N=520, how="mean", K=0, dtype="bfloat16"):
    """A number for each row, with maths behind it, and beside the rows that it is of; behind a linear where K
    is given."""
    if K:
        x = tg.linear(tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), name="h")
    else:
        x = tg.silu(tg.input("x", (M, N), dtype), name="h")
    r = REDUCTIONS[how](x, name="r")
    return tg.sigmoid(r * r + r, name="s"), tg.sub(x, r, name="y")


@tg.spec
def beside_rows(M=33, N=264, dtype="bfloat16"):
    """One column beside rows, on either side of a sign, behind a linear and behind a norm."""
    x, c = tg.input("x", (M, N), dtype), tg.input("c", (M, 1), dtype)
    w, g = tg.weight("w", (N, N), dtype), tg.weight("g", (N,), dtype)
    y = tg.mul(c, tg.linear(x, w, name="h"), name="y")
    return y, tg.add(tg.rms_norm(y, g, name="n"), tg.tanh(c, name="t"), name="z")


@tg.spec
def joined(M=19, N=72, K=40, dtype="bfloat16"):
    """Columns of three tensors, one of them a view, and what reads them."""
    x, z, w = tg.input("x", (M, N), dtype), tg.input("z", (M, K), dtype), tg.weight("w", (64, N + K), dtype)
    e = tg.exp(x, name="e")
    c = tg.cat([e, z, x[:, N // 2 :]], name="c")
    return tg.softmax(c, name="s"), tg.relu(c[..., : N + K], name="v"), tg.linear(c[:, : N + K], w, name="y")


@tg.spec
def routed(M=37, N=64, k=2, dtype="bfloat16"):
    """The largest numbers of each row, their columns, and what another tensor has there."""
    x, z = tg.input("x", (M, N), dtype), tg.input("z", (M, N), dtype)
    values, ids = tg.topk(x, k, name="top")
    shares = tg.div(values, tg.sum(values, name="s"), name="shares")
    return shares, ids, tg.silu(tg.take_along(tg.relu(z, name="h"), ids, name="t"), name="y")


@tg.spec
def of_parts(M=37, N=88, first=0, end=44, how="sum", dtype="bfloat16"):
    """Numbers made of some columns of rows: behind them stand others."""
    part = tg.input("x", (M, N), dtype)[:, first:end]
    values, ids = tg.topk(part, 2, name="top")
    y = tg.mul(tg.softmax(part, name="s"), REDUCTIONS[how](part, name="r"), name="y")
    return y, values, ids


@tg.spec
def chosen(M=37, N=136, n=5, dtype="bfloat16"):
    """Given columns of a linear's rows, of which they are a view, and the largest of each row."""
    x, w = tg.input("x", (M, 64), dtype), tg.weight("w", (2 * N, 64), dtype)
    left, right = tg.linear(x, w, name="h").chunk(2)
    ids = tg.input("ids", (M, n), "int32")
    y = tg.gelu(tg.take_along(right, ids, name="t"), name="y")
    return y, tg.take_along(left, ids[:, : (n + 1) // 2], name="z"), tg.argmax(x, name="best")


@tg.spec
def decoded(M=37, N=50, D=136, k=1, dtype="bfloat16"):
    """Rows of a table at the columns of the largest numbers, as a step of greedy decoding has them."""
    scores = tg.relu(tg.input("scores", (M, N), dtype), name="h")
    ids = tg.argmax(scores, name="top") if k == 1 else tg.topk(scores, k, name="top")[1]
    x = tg.silu(tg.embedding(ids, tg.weight("table", (N, D), dtype), name="e"), name="x")
    return x, ids, tg.relu(x, name="y")


@tg.spec
def looked_up(B=3, S=7, V=50, D=136, dtype="bfloat16"):
    """Rows of a table plus others, their mean, and scores against the table."""
    ids, places = tg.input("ids", (B, S), "int32"), tg.input("places", (B, S, D), dtype)
    table = tg.weight("table", (V, D), dtype)
    x = tg.add(tg.embedding(ids, table, name="e"), places, name="x")
    return tg.linear(tg.sub(x, tg.mean(x, name="m"), name="c"), table, name="y")


@tg.spec
def shrunk(B=2, H=13, W=9, C=24, padding=1, counted=True, dtype="float16"):
    x = tg.relu(tg.input("x", (B, H, W, C), dtype), name="h")
    how = {"padding": padding, "count_include_pad": counted}
    return (
        tg.silu(tg.avg_pool2d(x, 3, stride=2, **how, name="p"), name="y"),
        tg.avg_pool2d(x, (2, 5), stride=(1, 2), name="z"),
        tg.avg_pool2d(x, 7, name="wide"),
    )


@tg.spec
def grown(B=2, H=5, W=7, C=24, factor=2, dtype="bfloat16"):
    """An image's pixels several times, and a convolution of them beside what was there."""
    f, g = (factor, factor) if isinstance(factor, int) else factor
    x, z = tg.input("x", (B, H, W, C), dtype), tg.input("z", (B, f * H, g * W, C), dtype)
    u = tg.upsample(tg.gelu(x, name="h"), factor, name="u")
    w = tg.weight("w", (16, 3, 3, 2 * C), dtype)
    return tg.conv2d(tg.cat([u, z], name="c"), w, padding=1, name="y")


@tg.spec
def grouped(B=2, H=9, W=7, C=40, groups=5, dtype="bfloat16"):
    """group_norm behind a convolution, with an activation and a residual."""
    x, w = tg.input("x", (B, H, W, C), dtype), tg.weight("w", (C, 3, 3, C), dtype)
    g, b = tg.weight("g", (C,), dtype), tg.weight("b", (C,), dtype)
    h = tg.conv2d(x, w, padding=1, name="h")
    return tg.add(tg.silu(tg.group_norm(h, groups, g, b, name="n"), name="s"), x, name="y")


@tg.spec
def in_groups(B=2, H=11, W=9, C=40, N=40, groups=40, size=3, stride=1, dilation=1, dtype="bfloat16"):
    """A convolution in groups behind an activation, with a bias and an activation."""
    x, w = tg.input("x", (B, H, W, C), dtype), tg.weight("w", (N, size, size, C // groups), dtype)
    how = {"stride": stride, "padding": dilation * (size // 2), "dilation": dilation, "groups": groups}
    return tg.silu(tg.conv2d(tg.relu(x, name="h"), w, tg.weight("b", (N,), dtype), **how, name="c"), name="y")


@tg.spec
def transposed(B=2, H=7, W=5, C=40, N=24, size=2, stride=2, padding=0, more=0, dilation=1, dtype="bfloat16"):
    """A transposed convolution behind an activation, with a bias, an activation and what is added to it."""
    x, w = tg.input("x", (B, H, W, C), dtype), tg.weight("w", (N, size, size, C), dtype)
    how = {"stride": stride, "padding": padding, "output_padding": more, "dilation": dilation}
    h = tg.silu(tg.conv_transpose2d(tg.relu(x, name="h"), w, tg.weight("b", (N,), dtype), **how, name="c"))
    return tg.add(h, tg.input("z", h.shape, dtype), name="y")


@tg.spec
def of_channels(B=2, H=7, W=9, C=32, lo=16, hi=32, N=24, size=3, stride=1, made=True, dtype="bfloat16"):
    """A convolution of some channels of an image, which another op makes or not."""
    x, w = tg.input("x", (B, H, W, C), dtype), tg.weight("w", (N, size, size, hi - lo), dtype)
    h = tg.silu(x, name="h") if made else x
    return tg.relu(tg.conv2d(h[..., lo:hi], w, stride=stride, padding=size // 2, name="c"), name="y")


@tg.spec
def left_out(B=1, H=1, W=4, C=12, N=22, dtype="float16"):
    """Every second line of what another op makes, of which padding leaves none: nothing is to wait for."""
    x, w = tg.input("x", (B, H, W, C), dtype), tg.weight("w", (N, 1, 2, C), dtype)
    h = tg.conv2d(x, tg.weight("f", (C, 1, 1, C), dtype), name="h")
    return tg.conv2d(h, w, stride=(2, 1), padding=(1, 1), dilation=(2, 2), name="y"), tg.tanh(h, name="z")


@tg.spec
def weighed(B=3, H=9, W=7, C=40, dtype="bfloat16"):
    """Channels weighed by what each image says of them, as squeeze-and-excitation does."""
    x, w = tg.input("x", (B, H, W, C), dtype), tg.weight("w", (C, C), dtype)
    h = tg.silu(tg.conv2d(x, tg.weight("f", (C, 3, 3, 1), dtype), padding=1, groups=C, name="c"), name="h")
    each = tg.sigmoid(tg.linear(tg.global_avg_pool(h, name="m"), w, name="l"), name="s")
    less = tg.max_pool2d(x, 3, name="p")
    return tg.add(tg.mul(h, each, name="z"), x, name="y"), tg.mul(less, each, name="v")


@tg.spec
def of_pixels(B=2, H=9, W=7, C=40, dtype="bfloat16"):
    """A block of ConvNeXt: each channel alone, the channels of a pixel normed, two linears of them, and a
    residual."""
    x, w = tg.input("x", (B, H, W, C), dtype), tg.weight("w", (C, 7, 7, 1), dtype)
    g, c, s = (tg.weight(name, (C,), dtype) for name in "gcs")
    up, down = tg.weight("up", (3 * C, 1, 1, C), dtype), tg.weight("down", (C, 1, 1, 3 * C), dtype)
    n = tg.layer_norm(tg.conv2d(x, w, padding=3, groups=C, name="each"), g, c, name="n")
    h = tg.gelu(tg.conv2d(n, up, name="u"), name="h")
    y = tg.add(tg.mul(tg.conv2d(h, down, name="d"), s, name="scaled"), x, name="y")
    return y, tg.relu(tg.rms_norm(y, g, name="r"), name="z")


@tg.spec
def padded(M=37, N=77, behind=3, first=0, dtype="bfloat16"):
    """y = gelu(x, zeros behind) + r, x some columns of a wider tensor"""
    z, r = tg.input("z", (M, first + N + 1), dtype), tg.input("r", (M, N + behind), dtype)
    return tg.add(tg.gelu(tg.pad(z[:, first : first + N], behind, name="p")), r, name="y")


@tg.spec
def begun_anywhere(M=70, N=77, K=135, dtype="bfloat16"):
    """y = x wᵀ + r, x some columns of a wider tensor, from an odd one on"""
    _, x, _ = tg.input("z", (M, K + 5), dtype).split([3, K, 2])
    w, r = tg.weight("w", (N, K), dtype), tg.input("r", (M, N), dtype)
    return tg.add(tg.linear(x, w, name="y"), r, name="sum")


@tg.spec
def any_width(M=37, K=77, N=50, dtype="bfloat16"):
    """Linears of any width: a bias and an activation, a gated pair, a residual."""
    x, w, b = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype), tg.weight("b", (N,), dtype)
    h = tg.gelu(tg.linear(x, w, b, name="up"), name="h")
    gate, up = tg.linear(h, tg.weight("v", (2 * K, N), dtype), name="pair").chunk(2)
    return tg.add(tg.mul(tg.silu(gate), up), x, name="y")


@tg.spec
def low_rank(M=40, H=136, R=4, dtype="bfloat16"):
    """A linear and what two of a few columns add to it."""
    x, w = tg.input("x", (M, H), dtype), tg.weight("w", (H, H), dtype)
    a, b = tg.weight("a", (R, H), dtype), tg.weight("b", (H, R), dtype)
    low = tg.linear(tg.linear(x, a, name="down"), b, name="up")
    return tg.add(tg.linear(x, w, name="full"), tg.scale(low, 2.0), name="y")


@tg.spec
def multiplied(B=2, M=40, K=72, N=88, ways="nn", many=True, dtype="float16"):
    """A matmul, either side as it is or transposed, of one right operand or many, with maths behind it."""
    left, right = ways
    a = tg.input("a", (B, K, M) if left == "t" else (B, M, K), dtype)
    b = tg.input("b", (*((B,) if many else ()), *((N, K) if right == "t" else (K, N))), dtype)
    y = tg.matmul(a, b, transpose_a=left == "t", transpose_b=right == "t", name="p")
    return tg.relu(tg.add(y, tg.input("c", (B, M, N), dtype)), name="y")


@tg.spec
def of_types(M=33, N=264, dtype="bfloat16"):
    """Vectors and columns of float32 beside 16-bit rows."""
    x, c, v = tg.input("x", (M, N), dtype), tg.input("c", (M, 1), "float32"), tg.weight("v", (N,), "float32")
    y = tg.linear(x, tg.weight("w", (N, N), dtype), name="h") * v
    return (
        tg.add(tg.mul(y, c), x, name="y"),
        tg.sub(tg.softmax(x, name="s"), c, name="z"),
        tg.mul(x, v, name="p"),
    )


@tg.spec
def lain_otherwise(B=2, S=17, H=3, D=40, dtype="bfloat16"):
    """Heads turned, tokens beside channels, a part of both, and columns one after another."""
    x = tg.silu(tg.input("x", (B, S, H * D), dtype), name="h")
    heads = tg.permute(tg.reshape(x, (B, S, H, D)), (0, 2, 1, 3), name="heads")
    turned = tg.transpose(x, 1, 2, name="turned")
    mixed = tg.linear(turned, tg.weight("w", (S, S), dtype), name="mixed")
    part, first = x[:, 1:, ::2] * 2.0, tg.reshape(x[:, 0], (B * H, D))
    return tg.relu(heads), tg.transpose(mixed, 1, 2, name="back"), part, first


LANGUAGE = [
    *(Case(f"{how} of rows", reduced, {"how": how}) for how in REDUCTIONS),
    *(Case(f"{how} of 77 columns", reduced, {"how": how, "N": 77, "dtype": "float16"}) for how in REDUCTIONS),
    *(
        Case(f"{how}, rows read anew", reduced, {"how": how, "M": 3, "N": n})
        for how, n in (("mean", 20480), ("max", 17001), ("min", 20480), ("logsumexp", 32001))
    ),
    Case("mean, float32, one row of 1023", reduced, {"M": 1, "N": 1023, "dtype": "float32"}),
    Case("mean behind a linear", reduced, {"K": 64}),
    Case("largest of one column", reduced, {"how": "max", "N": 1, "M": 1000}),
    *(
        Case(
            f"{how} of columns {first} to {end} of {n}",
            of_parts,
            {"how": how, "N": n, "first": first, "end": end},
        )
        for how in ("sum", "logsumexp")
        for first, end, n in ((0, 44, 88), (8, 20, 88), (4, 44, 88), (3, 40, 77), (0, 4, 8))
    ),
    Case("a column beside rows", beside_rows, {}),
    Case("a column beside rows of 77", beside_rows, {"N": 77, "M": 1, "dtype": "float16"}),
    Case("float32 beside 16 bits", of_types, {}),
    Case("float32 beside 16 bits, 77 columns", of_types, {"M": 300, "N": 77, "dtype": "float16"}),
    Case("elements that lie otherwise", lain_otherwise, {}),
    Case("elements that lie otherwise, heads of 21", lain_otherwise, {"D": 21, "S": 33, "dtype": "float16"}),
    Case("elements that lie otherwise, float32", lain_otherwise, {"D": 8, "S": 128, "dtype": "float32"}),
    Case("joined columns", joined, {}),
    Case("joined columns, no eights", joined, {"N": 26, "K": 5, "dtype": "float16"}),
    Case("rows of a table", looked_up, {}),
    Case("rows of a table, 21 columns", looked_up, {"D": 21, "V": 1000, "S": 40, "dtype": "float16"}),
    Case("the two largest", routed, {}),
    *(
        Case(
            f"the {k} largest of {n} columns, {m} rows, {dtype}",
            routed,
            {"M": m, "N": n, "k": k, "dtype": dtype},
        )
        for m, n, k, dtype in (
            (1, 1, 1, "float32"),
            (17, 9, 9, "float32"),
            (3, 1000, 8, "float16"),
            (1000, 40, 16, "bfloat16"),
            (33, 77, 5, "float16"),
            (5, 4099, 3, "bfloat16"),
        )
    ),
    *(
        Case(f"the largest of {n} columns, read anew", routed, {"M": 3, "N": n, "k": 3})
        for n in (20480, 17001)
    ),
    Case("chosen columns", chosen, {}),
    Case("rows of the largest numbers", decoded, {}),
    Case("rows of the three largest", decoded, {"M": 17, "N": 77, "k": 3, "dtype": "float16"}),
    Case("a row of the largest, odd widths", decoded, {"M": 1, "N": 1000, "D": 17}),
    Case("chosen columns of 77, eights of them", chosen, {"N": 77, "n": 16, "dtype": "float16"}),
    Case("means of windows", shrunk, {}),
    Case("means of windows, 10 channels", shrunk, {"C": 10, "counted": False, "dtype": "bfloat16"}),
    Case("pixels twice", grown, {}),
    Case("pixels 3 x 2 times, 5 channels", grown, {"factor": (3, 2), "C": 5, "B": 1, "dtype": "float16"}),
    Case("groups of 8 channels", grouped, {}),
    Case("groups of 8 channels, float32", grouped, {"B": 1, "dtype": "float32"}),
    Case("groups of 20 channels, which nobody holds", grouped, {"H": 57, "W": 57, "groups": 2, "B": 1}),
    Case("groups of 10 channels", grouped, {"groups": 4, "B": 1}),
    Case("groups of one channel, 57 x 57", grouped, {"groups": 8, "C": 8, "H": 57, "W": 57, "B": 1}),
    Case("depthwise", in_groups, {}),
    Case("depthwise, 7 x 7, two tiles", in_groups, {"size": 7, "C": 136, "N": 136, "groups": 136}),
    Case("depthwise, strided", in_groups, {"stride": 2, "size": 5, "dtype": "float16"}),
    Case("depthwise, dilated", in_groups, {"stride": (2, 3), "dilation": 2, "B": 1}),
    Case("depthwise, 10 channels", in_groups, {"C": 10, "N": 10, "groups": 10, "dtype": "float16"}),
    Case("depthwise, 9 x 9", in_groups, {"size": 9, "C": 8, "N": 8, "groups": 8, "dtype": "float32"}),
    Case("two filters a channel", in_groups, {"C": 24, "N": 48, "groups": 24}),
    Case("groups of 5 channels, 12 filters", in_groups, {"C": 15, "N": 36, "groups": 3, "stride": 2}),
    *(
        Case(f"groups of {n}", in_groups, {"groups": 48 // n, "C": 48, "N": 48, **more})
        for n, more in ((2, {"stride": 2, "size": 5}), (4, {}), (8, {"dilation": 2, "dtype": "float16"}))
    ),
    Case("groups of 64", in_groups, {"C": 128, "N": 128, "groups": 2, "dilation": 2, "dtype": "float16"}),
    Case("transposed, 2 x 2", transposed, {}),
    Case("transposed, 2 x 2, several tiles", transposed, {"H": 33, "W": 40, "N": 136, "dtype": "float16"}),
    Case("transposed, 4 x 4, padding", transposed, {"size": 4, "padding": 1, "C": 136}),
    Case("transposed, 3 x 3, no stride", transposed, {"size": 3, "stride": 1, "padding": 1, "W": 17}),
    Case("transposed, 3 x 3, a line more", transposed, {"size": 3, "padding": 1, "more": 1, "B": 1}),
    Case(
        "transposed, dilated, strides of 2 and 3",
        transposed,
        {"size": 4, "stride": (2, 3), "dilation": (2, 1), "padding": (1, 2), "more": (1, 0)},
    ),
    Case("transposed, 1 x 1, gaps", transposed, {"size": 1, "more": 1, "dtype": "float16"}),
    Case("transposed, 20 and 10 channels", transposed, {"C": 20, "N": 10, "size": 3}),
    Case("transposed, 3 and 21 channels", transposed, {"C": 3, "N": 21, "size": 4, "padding": 1}),
    *(
        Case(f"transposed, {c} channels, float32", transposed, {"C": c, "N": c, "dtype": "float32", **how})
        for c, how in ((24, {}), (21, {"size": 3, "padding": 1, "more": 1, "B": 1}))
    ),
    Case("some channels", of_channels, {}),
    Case("some channels of an input", of_channels, {"made": False}),
    *(
        Case(f"channels {lo} to {hi} of {c}", of_channels, {"C": c, "lo": lo, "hi": hi, **more})
        for lo, hi, c, more in (
            (64, 128, 192, {"stride": 2, "made": False, "dtype": "float16"}),
            (16, 32, 32, {"size": 1, "made": False}),
            (3, 6, 9, {}),
            (0, 3, 6, {"made": False, "dtype": "float16"}),
            (12, 28, 40, {}),
            (8, 24, 44, {"made": False}),
            (3, 6, 9, {"dtype": "float32"}),
        )
    ),
    Case("lines that a filter leaves out", left_out, {}),
    Case("weighed channels", weighed, {}),
    Case("weighed channels, 21 of them, float16", weighed, {"C": 21, "B": 1, "dtype": "float16"}),
    Case("norms of pixels", of_pixels, {}),
    Case("norms of pixels of 21 channels", of_pixels, {"C": 21, "B": 1, "dtype": "float16"}),
    Case("norms of pixels, lines of one", of_pixels, {"C": 264, "B": 1, "W": 1, "H": 5}),
    Case("77 and 50 columns", any_width, {}),
    Case("9 and 3 columns, one row", any_width, {"M": 1, "K": 9, "N": 3, "dtype": "float16"}),
    *(
        Case(f"{n} columns and {behind} of zeros", padded, {"N": n, "behind": behind, "first": first})
        for n, behind, first in ((77, 3, 0), (77, 4, 1), (64, 8, 0), (1023, 1, 0), (1, 7, 8), (40, 1, 3))
    ),
    Case("1023 columns, 300 rows", any_width, {"M": 300, "K": 1023, "N": 130}),
    Case("1021 and 261 columns, a pair of copies", any_width,
         {"M": 300, "K": 1021, "N": 261, "dtype": "float16"}),
    *(
        Case(f"rows of {k} from an odd column, {m} of them", begun_anywhere, {"M": m, "N": n, "K": k})
        for m, n, k in ((1, 1, 1), (17, 264, 1023), (999, 77, 1030))
    ),
    Case("float32 products", any_width, {"K": 72, "N": 48, "dtype": "float32"}),
    Case("float32 products of 77 columns", any_width, {"M": 1, "dtype": "float32"}),
    *(Case(f"rank {r}", low_rank, {"R": r}) for r in (1, 4)),
    *(
        Case(f"matmul {ways}, {dtype}", multiplied, {"ways": ways, "dtype": dtype, "K": 130})
        for ways in ("nn", "nt", "tn", "tt")
        for dtype in ("float16", "float32")
    ),
    Case("matmul of one right operand, all odd", multiplied, {"many": False, "M": 17, "K": 33, "N": 21}),
    *(
        Case(f"matmul, lines of {n} units, {dtype}", multiplied, {"ways": ways, **sizes, "dtype": dtype})
        for n, ways, sizes, dtype in (
            (6, "tn", {"M": 43, "N": 12}, "float16"),
            (12, "nn", {"M": 9, "N": 90}, "bfloat16"),
            (24, "nn", {"M": 9, "N": 90}, "float32"),
        )
    ),
    Case("matmul of one row", multiplied, {"B": 5, "M": 1, "K": 72, "N": 200, "dtype": "bfloat16"}),
    Case(
        "matmul, tiles of 128 x 128",
        multiplied,
        {"B": 1, "M": 140, "N": 136, "ways": "nt"},
        {"tiles": {"p": (128, 128, 64)}},
    ),
]
