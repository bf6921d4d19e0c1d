"""Wrong specs: each is refused with a SpecError that names what was given and what was expected, at the line
that is wrong."""

import dataclasses

import pytest
import torch

import tilegen as tg
from tilegen.frontend.loader import parse
from tilegen.frontend.program import Operand

HEAD = """\
import tilegen as tg

@tg.spec
def wrong(M=4):
"""
DECLARED = """\
    x, x3, z = tg.input("x", (4, 6), F), tg.input("x3", (2, 4, 6), F), tg.input("z", (4, 5), F)
    h, w, w3 = tg.input("h", (4, 6), H), tg.weight("w", (8, 6), F), tg.weight("w3", (2, 8, 6), F)
    v, v5, vh = tg.weight("v", (6,), F), tg.weight("v5", (5,), F), tg.weight("vh", (6,), H)
    image, kernel = tg.input("image", (1, 8, 10, 3), F), tg.weight("kernel", (4, 3, 3, 3), F)
    pos, two, at32 = tg.input("pos", (1,), "int32"), tg.input("two", (2,), "int32"), tg.input("at32", (1,), F)
    cache, long = tg.state("cache", (2, 16, 6), F), tg.input("longer", (2, 17, 6), F)
    x8, w8 = tg.input("x8", (4, 32), F8), tg.weight("w8", (8, 32), F8)
    wq, wide = tg.weight("wq", (8, 6), "int8"), tg.weight("wide", (8, 32), "int8")
"""
F, H, F8 = "float32", "float16", "float8_e4m3fn"


def run(*lines, declared=True):
    """Run a spec with these lines; the namespace is fresh each time."""
    body = (DECLARED if declared else "") + "".join(f"    {line}\n" for line in lines)
    names = {"F": F, "H": H, "F8": F8}
    exec(compile(HEAD + body, "wrong.py", "exec"), names)
    return names["wrong"]()


def refused(*lines, words, line=None, declared=True):
    """The spec is refused at the last line, or at `line` of those given (0: the def line), in these words."""
    with pytest.raises(tg.SpecError) as caught:
        run(*lines, declared=declared)
    at = len(lines) if line is None else line
    expected = 3 if at == 0 else HEAD.count("\n") + (DECLARED.count("\n") if declared else 0) + at
    assert caught.value.where == f"wrong.py:{expected}"
    message = str(caught.value)
    assert message.startswith(f"wrong.py:{expected}: ")
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"


# ---- shapes, dtypes and attributes of every op -------------------------------------------------------------

OPS = [
    ("tg.linear(x, w3)", "must be (N, K)", "(2, 8, 6)"),
    ("tg.linear(z, w)", "has 5 columns", "expects 6"),
    ("tg.linear(h, w)", "float16", "float32"),
    ("tg.linear(x, w, v)", "(6,)", "(8,)"),
    ("tg.linear(x, w, 1.0)", "tensor", "1.0"),
    ("tg.linear(x, 5)", "tensor", "5"),
    ("tg.linear(None, w)", "tensor", "None"),
    ("tg.matmul(x, v)", "two dimensions", "(6,)"),
    ("tg.matmul(x, z)", "6 of a (4, 6)", "4 of b (4, 5)"),
    ("tg.matmul(x3, w3)", "6 of a", "8 of b"),
    ("tg.matmul(x, w3, transpose_b=True)", "batch", "()", "(2,)"),
    ("tg.matmul(h, w, transpose_b=True)", "float16", "float32"),
    ("tg.matmul(x, 'w')", "tensor", "'w'"),
    ("tg.matmul(x, tg.input('m', (tg.dim('M', max=8), 6), x.dtype), transpose_b=True)", "M columns", "moves"),
    ("(lambda m: tg.matmul(m, m, transpose_a=True))(tg.input('m', (tg.dim('M', max=8), 6), x.dtype))",
     "M numbers", "moves"),
    ("tg.conv2d(x, kernel)", "(B, H, W, C)", "(4, 6)"),
    ("tg.conv2d(image, w)", "(N, R, S, C)", "(8, 6)"),
    ("tg.conv2d(image, tg.weight('k4', (4, 3, 3, 4), F))", "3 channels", "expects 4"),
    ("tg.conv2d(image, tg.weight('kh', (4, 3, 3, 3), H))", "float32", "float16"),
    ("tg.conv2d(image, kernel, v)", "(6,)", "(4,)"),
    ("tg.conv2d(image[..., :1], kernel[..., :1])", "w is a whole tensor", "columns of 'kernel'"),
    ("tg.conv_transpose2d(image[..., :1], kernel[..., :1])", "w is a whole tensor", "columns of 'kernel'"),
    ("tg.conv2d(image, kernel, stride=0)", "stride", "at least 1", "0"),
    ("tg.conv2d(image, kernel, stride=(1, 2, 3))", "stride", "one or two ints", "(1, 2, 3)"),
    ("tg.conv2d(image, kernel, stride=1.5)", "stride", "one or two ints", "1.5"),
    ("tg.conv2d(image, kernel, stride=None)", "stride", "one or two ints", "None"),
    ("tg.conv2d(image, kernel, stride=True)", "stride", "ints", "True"),
    ("tg.conv2d(image, kernel, padding=-1)", "padding", "at least 0", "-1"),
    ("tg.conv2d(image, kernel, padding='same')", "padding", "ints", "'same'"),
    ("tg.conv2d(image, kernel, dilation=0)", "dilation", "at least 1", "0"),
    ("tg.conv2d(image, kernel, groups=2)", "groups divide", "3 channels", "4 filters", "2"),
    ("tg.conv2d(image, kernel, groups=0)", "groups divide", "0"),
    ("tg.conv2d(image, tg.weight('k6', (6, 3, 3, 3), F), groups=3)", "3 channels in 3 groups", "3 of each"),
    ("tg.conv2d(image, tg.weight('big', (4, 9, 3, 3), F))", "(9, 3)", "does not fit", "(8, 10)"),
    ("tg.conv_transpose2d(x, kernel)", "(B, H, W, C)", "(4, 6)"),
    ("tg.conv_transpose2d(image, w)", "(N, R, S, C)", "(8, 6)"),
    (
        "tg.conv_transpose2d(image, tg.weight('t4', (3, 4, 3, 4), F))",
        *("3 channels", "expects 4", "permute(1, 2, 3, 0)"),
    ),
    ("tg.conv_transpose2d(image, tg.weight('th', (4, 3, 3, 3), H))", "float32", "float16"),
    ("tg.conv_transpose2d(image, kernel, v)", "(6,)", "(4,)"),
    ("tg.conv_transpose2d(image, kernel, stride=0)", "stride", "at least 1", "0"),
    ("tg.conv_transpose2d(image, kernel, padding=-1)", "padding", "at least 0", "-1"),
    ("tg.conv_transpose2d(image, kernel, dilation=1.5)", "dilation", "one or two ints", "1.5"),
    ("tg.conv_transpose2d(image, kernel, output_padding=None)", "output_padding", "ints", "None"),
    (
        "tg.conv_transpose2d(image, kernel, stride=(3, 1), output_padding=(2, 1))",
        *("output_padding is less than stride (3, 1) or dilation (1, 1)", "(2, 1)"),
    ),
    ("tg.conv_transpose2d(image, kernel, padding=5)", "padding (5, 5)", "(0, 2) pixels", "(8, 10)", "(3, 3)"),
    ("tg.conv2d(image, kernel, dilation=4)", "does not fit", "(8, 10)"),
    ("tg.max_pool2d(x, 2)", "(B, H, W, C)", "(4, 6)"),
    ("tg.max_pool2d(image, 0)", "window", "at least 1", "0"),
    ("tg.max_pool2d(image, 'a')", "window", "ints", "'a'"),
    ("tg.max_pool2d(image, 2, stride=0)", "stride", "at least 1", "0"),
    ("tg.max_pool2d(image, 2, padding=2)", "padding (2, 2)", "half", "(2, 2)"),
    ("tg.max_pool2d(image, 9)", "(9, 9)", "does not fit", "(8, 10)"),
    ("tg.global_avg_pool(x)", "(B, H, W, C)", "(4, 6)"),
    ("tg.flatten(x3)", "(B, H, W, C)", "(2, 4, 6)"),
    ("tg.softmax(v, causal=True)", "rows", "(6,)"),
    ("tg.softmax(tg.input('tall', (6, 4), F), causal=True)", "at least as many columns as rows", "(6, 4)"),
    ("tg.rms_norm(x, v5)", "'v5'", "(6,)", "(5,)"),
    ("tg.rms_norm(x, vh)", "float32", "float16"),
    ("tg.rms_norm(x, 3)", "tensor", "3"),
    ("tg.layer_norm(x, v, v5)", "'v5'", "(6,)", "(5,)"),
    ("tg.layer_norm(x, v, vh)", "float32", "float16"),
    ("tg.rope(x, heads=2)", "(B, S, heads·D)", "(4, 6)"),
    ("tg.rope(x3, heads=4)", "6 columns", "4 heads"),
    ("tg.rope(x3, heads=2)", "6 columns", "2 heads", "even"),
    ("tg.rope(x3, heads=0)", "positive", "0"),
    ("tg.rope(x3, heads=3, at=two)", "position", "(1,)"),
    ("tg.rope(x3, heads=3, at=5)", "position", "int32"),
    ("tg.rotary(x, x, x, heads=2)", "(B, S, heads·D)", "(4, 6)"),
    ("tg.rotary(x3, x, x, heads=3)", "rotary: cos and sin", "(4, 2)", "(4, 6)"),
    ("tg.rotary(x3, z, z, heads=1)", "rotary: cos and sin", "an even number", "(4, 5)"),
    ("tg.rotary(x3, x, x, heads=1, interleaved=1)", "interleaved is a bool", "1"),
    ("tg.rotary(x3, h, h, heads=1)", "x is float32", "float16", "or float32"),
    ("tg.rotary(x3, x, h, heads=1)", "float32 and float16", "both of x's dtype"),
    ("tg.gelu(x, approximate='fast')", "'none' or 'tanh'", "'fast'"),
    ("tg.relu(5)", "tensor", "5"),
    ("tg.silu('x')", "tensor", "'x'"),
    ("tg.relu(v)", "two dimensions", "(6,)"),
    ("tg.add(x, z)", "'z' (4, 5)", "(4, 6)", "(6,)"),
    ("tg.add(x, h)", "float32", "float16"),
    ("tg.mul(x, v5)", "'v5' (5,)", "(6,)"),
    ("tg.mul(x, None)", "tensors", "None"),
    ("x + None", "finite number", "None"),
    ("x * 'a'", "finite number", "'a'"),
    ("tg.scale(x, float('nan'))", "finite", "nan"),
    ("tg.scale(x, '2')", "finite", "'2'"),
    ("x * float('inf')", "finite", "inf"),
    ("tg.batch_norm(x, v, v, v, v5)", "'v5' (5,)", "(6,)"),
    ("tg.batch_norm(x, v, v, v, v, eps=0.0)", "eps", "positive", "0.0"),
    ("tg.pointwise('sin(e0)', x)", "sin(e0)", "gelu_tanh"),
    # attention and its caches
    ("tg.attention(x, x, x, heads=2)", "(B, S, heads·D)", "(4, 6)"),
    ("tg.attention(x3, x3, x3, heads=4)", "6 columns", "4 heads"),
    ("tg.attention(x3, x3, x3, heads=0)", "heads", "positive int", "0"),
    ("tg.attention(x3, x3, x3, heads=2.0)", "heads", "positive int", "2.0"),
    ("tg.attention(x3, x3, x3, heads=3, kv_heads=2)", "3 heads", "2 key heads"),
    ("tg.attention(x3, x3, x3, heads=3, kv_heads=0)", "3 heads", "0 key heads"),
    ("tg.attention(x3, x3, x3, heads=6, kv_heads=3)", "head size 1", "has 2"),
    ("tg.attention(x3, long, x3, heads=3)", "k (2, 17, 6)", "v (2, 4, 6)"),
    ("tg.attention(tg.input('q1', (1, 4, 6), F), x3, x3, heads=3)", "batch 1", "has 2"),
    ("tg.attention(tg.input('q4', (2, 4, 2, 3), F), x3, x3, heads=3)", "2 heads", "expected 3"),
    ("tg.attention(x3, x3, tg.input('vh3', (2, 4, 6), H), heads=3)", "float32", "float16", "one dtype"),
    ("tg.attention(x3, x3, x3, heads=3, window=4)", "window", "causal=True", "4"),
    ("tg.attention(x3, x3, x3, heads=3, causal=True, window=0)", "positive int", "0"),
    ("tg.attention(x3, x3, x3, heads=3, causal=True, window=2.0)", "positive int", "2.0"),
    ("tg.attention(x3, x3, x3, heads=3, softcap=-1.0)", "softcap", "-1.0"),
    ("tg.attention(x3, x3, x3, heads=3, lengths=at32)", "lengths", "(2,)", "int32", "at32"),
    ("tg.attention(x3, x3, x3, heads=3, lengths=pos)", "lengths", "(2,)", "(1,)"),
    ("tg.attention(x3, x3, x3, heads=3, lengths=4)", "lengths", "(2,)", "4"),
    (
        "tg.attention(x3, cache, cache, heads=3, at=pos, lengths=tg.input('n', (2,), 'int32'))",
        "lengths",
        "without caches",
        "at",
    ),
    ("tg.attention(x3, x3, x3, heads=3, prefix=2)", "prefix", "causal=True", "2"),
    ("tg.attention(x3, x3, x3, heads=3, causal=True, prefix=0)", "prefix", "positive int", "0"),
    ("tg.attention(x3, x3, x3, heads=3, causal=True, prefix=5)", "prefix of 5", "4"),
    ("tg.attention(x3, x3, x3, heads=3, causal=True, window=2, prefix=1)", "prefix", "window", "1"),
    ("tg.attention(x3, cache, cache, heads=3, causal=True, at=pos, prefix=1)", "prefix", "without at", "1"),
    ("tg.attention(x3, x3, x3, heads=3, alibi=v)", "alibi", "(3,)", "(6,)"),
    ("tg.attention(x3, x3, x3, heads=3, alibi=tg.weight('m', (3,), H))", "alibi", "float32", "float16"),
    ("tg.attention(x3, x3, x3, heads=3, alibi=0.5)", "alibi", "(3,)", "0.5"),
    ("tg.attention(x3, x3, x3, heads=3, bias=0.5)", "bias", "of float32", "0.5"),
    ("tg.attention(x3, x3, x3, heads=3, bias=pos)", "bias", "of float32", "pos (1,) of int32"),
    ("tg.attention(x3, x3, x3, heads=3, bias=tg.weight('m', (4, 4), H))", "of float32", "float16"),
    ("tg.attention(x3, x3, x3, heads=3, bias=v)", "bias", "(1 or 2, 1 or 3, 1 or 4, 4)", "(6,)"),
    (
        "tg.attention(x3, x3, x3, heads=3, bias=tg.weight('m', (3, 3, 4, 4), F))",
        "bias",
        "a divisor of 2",
        "(3, 3, 4, 4)",
    ),
    (
        "tg.attention(x3, x3, x3, heads=3, bias=tg.weight('m', (2, 2, 1, 4), F))",
        "(1 or 2, 1 or 3, 1 or 4, 4)",
        "(2, 2, 1, 4)",
    ),
    ("tg.attention(x3, x3, x3, heads=3, bias=tg.weight('m', (3, 4, 1), F))", "1 or 4, 4)", "(3, 4, 1)"),
    (
        "tg.attention(x3, cache, cache, heads=3, at=pos, bias=tg.weight('m', (4, 16), F))",
        "bias",
        "without caches",
        "at",
    ),
    (
        "m = tg.input('m3', (2, tg.dim('S', max=9), 6), F);"
        " tg.attention(m, m, m, heads=3, bias=tg.weight('m', (1, 9), F))",
        "S queries",
        "beside a bias",
        "expected numbers",
    ),
    (
        "tg.attention(x3, x3, x3, heads=3, block_mask=[[1], [1]])",
        "table of 1 x 1",
        "4 queries by 128",
        "2 rows of 1",
    ),
    ("tg.attention(x3, x3, x3, heads=3, block_mask=[[1, 1]], block_size=2)", "2 x 2", "1 rows of 2"),
    ("tg.attention(x3, x3, x3, heads=3, block_mask=[[1, 1], [1]], block_size=2)", "2 x 2", "1 and 2"),
    ("tg.attention(x3, x3, x3, heads=3, block_mask=[[2]])", "bools"),
    ("tg.attention(x3, x3, x3, heads=3, block_mask=True)", "1 x 1", "True"),
    ("tg.attention(x3, x3, x3, heads=3, block_mask=[[1]], block_size=0)", "block_size", "positive int", "0"),
    ("tg.attention(x3, x3, x3, heads=3, block_mask=[[1]], block_size=(4, 2, 1))", "block_size", "(4, 2, 1)"),
    ("tg.attention(x3, cache, cache, heads=3, at=pos, block_mask=[[1]])", "block_mask", "caches", "at"),
    (
        "m = tg.input('m3', (2, tg.dim('S', max=9), 6), F); tg.attention(m, m, m, heads=3, block_mask=[[1]])",
        "S queries",
        "expected numbers",
    ),
    ("tg.attention(long, x3, x3, heads=3, causal=True)", "at least as many keys as queries", "4", "17"),
    ("tg.attention(x3, cache, cache, heads=3, at=at32)", "position", "int32"),
    ("tg.attention(long, cache, cache, heads=3, at=pos)", "17", "16"),
    ("tg.attention(x3, x3, x3, heads=3, scale='a')", "scale", "'a'"),
    ("tg.append(x3, x3, at=0)", "'x3'", "not a whole tg.state"),
    ("tg.append(cache.chunk(2)[0], x3.chunk(2)[0], at=0)", "'cache'", "not a whole tg.state"),
    ("tg.append(cache, x, at=0)", "(2, S, 6)", "(4, 6)"),
    ("tg.append(cache, tg.input('xh', (2, 4, 6), H), at=0)", "float16", "float32"),
    ("tg.append(cache, x3, at=13)", "13", "17", "cache of 16"),
    ("tg.append(cache, x3, at=-1)", "-1", "cache of 16"),
    ("tg.append(cache, x3, at='end')", "position", "int32"),
    ("tg.append(cache, x3, at=two)", "position", "(1,)"),
    ("tg.append(cache, long, at=pos)", "17 rows", "cache of 16"),
    ("tg.append(cache, 7, at=0)", "tensor", "7"),
    ("tg.append(5, x3, at=0)", "tensor", "5"),
    # numbers of rows, columns beside each other, tables, images
    ("tg.mean(v)", "mean", "two dimensions", "(6,)"),
    ("tg.sum(5)", "sum", "tensor", "5"),
    ("tg.add(x, tg.input('c', (2, 1), F))", "(4, 6)", "(6,)", "(4, 1)", "(2, 1)"),
    ("tg.pad(x, 0)", "behind", "from 1 on", "0"),
    ("tg.pad(x, 1.0)", "behind", "1.0"),
    ("tg.pad(x8, 1)", "x8", "float8_e4m3fn"),
    ("tg.pad(v, 1)", "two dimensions", "(6,)"),
    ("tg.pad(two, 1)", "int32", "numbers with a point"),
    ("tg.cat(x)", "cat", "list of two tensors"),
    ("tg.cat([x])", "cat", "two tensors or more"),
    ("tg.cat([x, 5])", "values[1]", "tensor", "5"),
    ("tg.cat([x, x3])", "values[1]", "'x3'", "(2, 4, 6)", "(4,)"),
    ("tg.cat([x, h])", "float32", "float16", "one dtype"),
    ("tg.cat([v, v])", "two dimensions", "(6,)"),
    ("tg.embedding(x, w)", "embedding", "'int32'", "float32"),
    ("tg.embedding(two, v)", "(V, D)", "(6,)"),
    ("tg.embedding(tg.argmax(x), tg.weight('t5', (5, 8), F))", "columns of 6 numbers", "5 rows of t5"),
    ("tg.embedding(tg.topk(x, 4)[1][:, :2], w)", "embedding", "those of a topk"),
    ("tg.embedding(two, tg.input('whole', (4, 6), 'int32'))", "'whole'", "int32", "with a point"),
    ("tg.topk(x, 0)", "topk", "6 columns", "0"),
    ("tg.topk(x, 7)", "topk", "6 columns", "7"),
    ("tg.topk(x, 2.0)", "topk", "6 columns", "2.0"),
    ("tg.topk(v, 2)", "two dimensions", "(6,)"),
    ("tg.topk(5, 2)", "topk", "tensor", "5"),
    ("tg.argmax(tg.argmax(x))", "argmax", "'topk'", "int32"),
    ("tg.argmax(v)", "argmax", "two dimensions", "(6,)"),
    ("tg.softmax(tg.argmax(x))", "softmax", "'topk'", "int32"),
    ("tg.add(tg.argmax(x), x)", "'topk'", "int32"),
    ("tg.take_along(x, z)", "take_along", "int32", "float32"),
    ("tg.take_along(x, 5)", "take_along", "ids", "5"),
    ("tg.take_along(x, two)", "(4, 6)", "(2,)"),
    ("tg.take_along(x3, tg.argmax(x))", "(2, 4, 6)", "(4, 1)"),
    ("tg.take_along(v, two)", "two dimensions", "(6,)"),
    ("tg.append(cache, x3, at=tg.argmax(tg.input('one', (1, 6), F)))", "position", "'int32'"),
    ("tg.group_norm(x, 2, v, v)", "(B, H, W, C)", "(4, 6)"),
    ("tg.group_norm(image, 2, v, v)", "divide the 3 channels", "2"),
    ("tg.group_norm(image, 3, v, v)", "'v' is (3,)", "(6,)"),
    ("tg.upsample(x, 2)", "(B, H, W, C)", "(4, 6)"),
    ("tg.upsample(image, 0)", "factor", "at least 1", "0"),
    ("tg.upsample(image, 1.5)", "factor", "1.5"),
    ("tg.avg_pool2d(image, 3, padding=2)", "avg_pool2d", "padding (2, 2)", "half of the window"),
    ("tg.avg_pool2d(image, 9)", "window (9, 9)", "(8, 10)"),
    ("tg.avg_pool2d(image, 2, count_include_pad=1)", "True or False", "1"),
    ("x @ w", "matmul", "inner sizes", "6", "8"),
    # numbers of one byte
    ("tg.input('q', (4, 40), F8)", "'q'", "units of 16 bytes", "(4, 40)", "48"),
    ("tg.input('q', (4, 'a'), F8)", "'q'", "sizes are ints or symbols", "'a'"),
    ("tg.input('q', (4, tg.dim('K', max=64)), F8)", "'q'", "units of 16 bytes", "K"),
    ("tg.state('q', (2, 8, 32), F8)", "dtype", "inputs and weights of linears float8_e4m3fn or int8"),
    ("tg.relu(x8)", "'x8' is float8_e4m3fn", "linear alone"),
    ("tg.linear(x8, w8, scale_x=v)", "scale_x", "float32 (4, 1)", "(6,)"),
    ("tg.linear(x8, w8, scale_w=tg.input('s', (8,), H))", "scale_w", "float32 (8,)", "float16"),
    ("tg.linear(x8, w8, scale_x='a')", "scale_x", "finite number", "'a'"),
    ("tg.linear(x8, w8, dtype='int32')", "dtype", "bfloat16, float16, float32", "'int32'"),
    ("tg.linear(x8, w8, bias=v)", "(6,)"),
    ("tg.linear(x8.chunk(2)[0], tg.input('u', (8, 16), F8))", "whole tensors", "view"),
    ("tg.linear(x, w, scale_x=2.0)", "scales", "float8_e4m3fn", "x is float32"),
    ("tg.linear(x, w, dtype='float16')", "a dtype of its own", "x is float32"),
    ("tg.state('q', (2, 8, 32), 'int8')", "dtype", "inputs and weights of linears float8_e4m3fn or int8"),
    ("tg.relu(wq)", "'wq' is int8", "linear alone"),
    ("tg.linear(wq, w)", "wq (8, 6) is int8", "w alone"),
    ("tg.linear(wq, wq)", "wq (8, 6) is int8", "w alone"),
    ("tg.linear(x8, wide)", "x is float8_e4m3fn, w is int8"),
    ("tg.linear(x, wq, scale_x=2.0)", "scale_w of int8, too", "x is float32"),
    ("tg.linear(x, wq, dtype=H)", "a dtype of its own", "w int8"),
    ("tg.linear(x, wq, scale_w=v)", "scale_w", "float32 (8,)", "(6,)"),
    ("tg.linear(h, wq, scale_w=tg.input('s', (8,), H))", "scale_w", "float32 (8,)", "float16"),
    ("tg.linear(x, wq, tg.input('b8', (8,), H))", "float32", "float16"),
    ("tg.linear(h, w, scale_w=2.0)", "float16", "float32"),
    ("tg.conv2d(image, tg.weight('k8', (4, 3, 3, 3), 'int8'))", "float32", "int8"),
    ("tg.permute(wq, (1, 0))", "'wq' is int8", "two bytes or four"),
    ("tg.mul(x, tg.input('c', (6,), H))", "float32", "float16", "one dtype"),
    # views
    ("x[0]", "x (4, 6)", "one dimension", "expected two at least"),
    ("x[0, 1, 2]", "'x'[(0, 1, 2)]", "its 2 dimensions"),
    ("x['a', :]", "'x'", "whole numbers"),
    ("x[..., ::0]", "'x'", "whole numbers"),
    ("x[..., ::-1]", "x (4, 6)", "none of the 6 places of dimension 1"),
    ("x[..., 6:]", "x (4, 6)", "6:", "none of the 6 places of dimension 1"),
    ("x[9]", "9", "none of the 4 places of dimension 0"),
    ("x8[1:]", "'x8' is float8_e4m3fn", "two bytes or four"),
    ("tg.permute(x, (0, 0))", "2 dimensions", "(0, 0)"),
    ("tg.transpose(x, 0, 5)", "2 dimensions", "0 and 5"),
    ("tg.reshape(x, (5, 5))", "24 elements", "(5, 5)"),
    ("tg.narrow(x, 0, 3, 4)", "the 4 places of dimension 0", "3 and 4"),
    ("tg.permute(tg.argmax(x), (1, 0))", "int32"),
    ("x.chunk(4)", "'x'", "6 columns", "4 equal parts"),
    ("x.chunk(0)", "0 equal parts"),
    ("x.chunk('2')", "6 columns", "'2'"),
    ("x.split([2, 3])", "[2, 3]", "sum to 5", "6 columns"),
    ("x.split([7, -1])", "[7, -1]", "6 columns"),
    ("x.split(['a', 'b'])", "'a'", "6 columns"),
    ("x.split(3)", "3", "6 columns"),
    ("tg.flatten(image).chunk(2)", "'image'", "flattened"),
    ("a, b = x", "'x'", ".chunk(n)"),
    ("tg.add(*x)", "'x'", ".chunk(n)"),
]


@pytest.mark.parametrize("row", OPS, ids=lambda row: row[0])
def test_wrong_operands(row):
    refused(row[0], words=row[1:])


def test_the_made_up_add_of_a_bias_is_told_at_the_line_of_the_linear():
    refused(
        "y = tg.linear(x, w)", "return tg.linear(y, tg.weight('w2', (8, 8), F), v)", words=["(6,)", "(8,)"]
    )


def test_one_tensor_has_one_form():
    refused(
        "y = tg.conv2d(image, kernel)",
        "tg.linear(image, tg.weight('w2', (8, 3), F))",
        words=["'image'", "spatial", "rows", "flatten"],
    )


# ---- declarations ------------------------------------------------------------------------------------------

DECLARATIONS = [
    ("tg.input('a', (4, 6), 'float64')", "'a'", "float64", "bfloat16"),
    ("tg.input('a', (4, 6), None)", "'a'", "None", "bfloat16"),
    ("tg.input('a', (4, 6), ['float32'])", "'a'", "['float32']", "bfloat16"),
    ("tg.weight('a', (4,), 'int32')", "'a'", "int32", "float16"),
    ("tg.state('a', (1, 4, 8), 'int32')", "'a'", "int32", "float16"),
    ("tg.input('a', (4, 0))", "'a'", "at least 1", "(4, 0)"),
    ("tg.input('a', (-4, 6))", "'a'", "at least 1", "(-4, 6)"),
    ("tg.input('a', (4, 6.0))", "'a'", "ints", "6.0"),
    ("tg.input('a', (4, True))", "'a'", "ints", "True"),
    ("tg.input('a', (4, '6'))", "'a'", "ints", "'6'"),
    ("tg.input('a', (4, None))", "'a'", "ints", "None"),
    ("tg.input('a', 4)", "'a'", "tuple", "4"),
    ("tg.input('a', '46')", "'a'", "tuple", "'46'"),
    ("tg.input('a', None)", "'a'", "tuple", "None"),
    ("tg.input('a', ())", "'a'", "1 to 4 dimensions", "()"),
    ("tg.input('a', (1, 2, 3, 4, 5))", "'a'", "1 to 4 dimensions", "(1, 2, 3, 4, 5)"),
    ("tg.state('a', (4, 6))", "'a'", "(B, S_max, H, D)", "(4, 6)"),
    ("tg.input('a b', (4, 6))", "identifiers", "'a b'"),
    ("tg.input('1a', (4, 6))", "identifiers", "'1a'"),
    ("tg.input('', (4, 6))", "identifiers", "''"),
    ("tg.input('_a', (4, 6))", "underscore", "'_a'"),
    ("tg.input('a__b', (4, 6))", "underscore", "'a__b'"),
    ("tg.input('tg_wait', (4, 6))", "begin with tg_", "'tg_wait'"),
    ("tg.input(7, (4, 6))", "identifiers", "7"),
    ("tg.input(None, (4, 6))", "identifiers", "None"),
    ("tg.relu(x, name='a-b')", "identifiers", "'a-b'"),
    ("tg.relu(x, name=5)", "identifiers", "5"),
    ("tg.linear(x, w, name='')", "identifiers", "''"),
    ("tg.input('x', (4, 6))", "'x'", "twice", "wrong.py:5"),
    ("tg.weight('cache', (4, 6))", "'cache'", "twice", "wrong.py:10"),
    ("tg.linear(x, w, name='x3')", "'x3'", "taken", "wrong.py:5"),
]


@pytest.mark.parametrize("row", DECLARATIONS, ids=lambda row: row[0])
def test_wrong_declarations(row):
    refused(row[0], words=row[1:])


@pytest.mark.parametrize(
    "name",
    ["class", "for", "None", "lambda", "int", "float", "new", "template", "const", "namespace", "switch"],
)
@pytest.mark.parametrize("line", ["tg.input({!r}, (4, 6))", "tg.relu(x, name={!r})"], ids=["input", "op"])
def test_words_of_python_and_cpp_are_no_names(line, name):
    refused(line.format(name), words=[repr(name)])


def test_names_of_ops():
    refused("tg.relu(x, name='y')", "tg.relu(x, name='y')", words=["'y'", "taken"])
    refused("tg.relu(x, name='y')", "tg.input('y', (4, 6))", words=["'y'", "twice"])


# ---- what a spec gives back --------------------------------------------------------------------------------

Y = "y = tg.linear(a, b)"
A = "a, b = tg.input('a', (4, 6), F), tg.weight('b', (8, 6), F)"
RETURNS = [
    ([A, Y], "must return a tensor", "None"),
    ([A, Y, "return 5"], "must return a tensor", "5"),
    ([A, Y, "return ()"], "must return a tensor", "()"),
    ([A, Y, "return y, 'y'"], "must return a tensor", "'y'"),
    ([A, Y, "return y.chunk(2)[0]"], "whole tensor", "view", "'linear'"),
    ([A, Y, "return y, y"], "'linear'", "twice"),
    (
        ["a = tg.input('a', (1, 4, 4, 2), F)", "return tg.flatten(tg.max_pool2d(a, 2))"],
        "whole tensor",
        "view",
    ),
]


@pytest.mark.parametrize("row", RETURNS, ids=lambda row: row[0][-1])
def test_wrong_returns(row):
    refused(*row[0], words=row[1:], line=0, declared=False)


def test_an_argument_is_not_a_result():
    refused(A, "return a, tg.linear(a, b)", words=["'a'", "input", "returned"], line=1, declared=False)
    refused(A, "return b, tg.linear(a, b)", words=["'b'", "weight", "returned"], line=1, declared=False)


@pytest.mark.parametrize("role", ["input", "weight", "state"])
def test_unused_arguments(role):
    lines = [A, f"c = tg.{role}('c', (2, 4, 6), F)", "return tg.linear(a, b)"]
    refused(*lines, words=[role, "'c'", "never used"], line=2, declared=False)


def test_unused_results():
    lines = [A, "unused = tg.relu(a, name='unused')", "return tg.linear(a, b)"]
    refused(*lines, words=["'unused'", "neither used nor returned"], line=2, declared=False)


# ---- images and rows ----------------------------------------------------------------------------------

PATCHES = "y = tg.conv2d(image, tg.weight('p', (7, 2, 2, 3), F), stride=2, name='patches')"


@pytest.mark.parametrize(
    "use",
    [
        "tg.linear(y, tg.weight('m', (5, 7), F))",
        "tg.softmax(y)",
        "tg.linear(tg.relu(y), tg.weight('m', (5, 7), F))",
    ],
)
def test_what_each_way_from_an_image_to_rows_gives(use):
    """A linear on patches is a 1x1 convolution; flatten is for one row an image."""
    words = [
        "(1, 4, 5, 7) is used as spatial and here as rows",
        "is rows, (1, 140), one for each image",
        "7 channels",
        "tg.conv2d",
        "(N, 1, 1, 7)",
    ]
    refused(PATCHES, f"return {use}", words=words)


def test_flatten_is_named_where_it_has_the_columns():
    refused(
        PATCHES,
        "tg.linear(y, tg.weight('m', (5, 140), F))",
        words=["has 7 columns", "expects 140", "tg.flatten(patches) has so many"],
    )


def test_rows_do_not_become_an_image():
    lines = [
        "y = tg.linear(image, tg.weight('m', (5, 3), F))",
        "tg.conv2d(y, tg.weight('p', (7, 1, 1, 5), F))",
    ]
    refused(
        *lines,
        words=[
            "is used as rows and here as spatial",
            "images are inputs and the results of convolutions and pooling",
        ],
    )


# ---- caches ------------------------------------------------------------------------------------------------

K = "k, c = tg.input('k', (2, 4, 6), F), tg.state('c', (2, 16, 6), F)"


def test_a_cache_is_not_read_before_it_is_written():
    lines = [K, "y = tg.attention(k, c, c, heads=2, name='early')", "c = tg.append(c, k, at=0)"]
    refused(*lines, words=["'c'", "read before", "early"], declared=False)


def test_a_cache_is_written_once():
    refused(
        K,
        "c = tg.append(c, k, at=0)",
        "c = tg.append(c, k, at=4)",
        words=["'c'", "already", "wrong.py:6"],
        declared=False,
    )


def test_a_cache_has_one_form():
    lines = [
        "k, c = tg.input('k', (2, 4, 6), F), tg.state('c', (2, 16, 2, 3), F)",
        "c = tg.append(c, k, at=0)",
        "tg.relu(c)",
    ]
    refused(*lines, words=["'c'", "heads"], declared=False)


# ---- ops outside a spec, other specs' tensors, cycles ------------------------------------------------------


def leaked():
    """A tensor of a spec that has ended."""
    kept = []

    @tg.spec
    def first():
        kept.append(tg.input("other", (4, 6), F))
        return tg.relu(kept[0])

    first()
    return kept[0]


def test_declarations_need_a_spec():
    for declare, name in ((tg.input, "input"), (tg.weight, "weight"), (tg.state, "state")):
        with pytest.raises(tg.SpecError, match=rf"test_spec_failures.py:\d+: tg\.{name} is called outside"):
            declare("a", (1, 4, 6), F)


def test_ops_need_a_spec():
    x = leaked()
    with pytest.raises(
        tg.SpecError, match=r"test_spec_failures.py:\d+: tg\.\w+ is called outside a @tg.spec"
    ):
        tg.relu(x)
    with pytest.raises(tg.SpecError, match="outside a @tg.spec"):
        tg.linear(x, x)
    with pytest.raises(tg.SpecError, match="outside a @tg.spec"):
        tg.append(x, x, at=0)


@pytest.mark.parametrize(
    "op",
    [tg.relu, lambda x: tg.linear(x, x), lambda x: x, lambda x: tg.softmax(x)],
    ids=["relu", "linear", "none", "softmax"],
)
def test_a_tensor_belongs_to_its_spec(op):
    other = leaked()

    @tg.spec
    def second():
        return op(other)

    with pytest.raises(tg.SpecError, match="'other'.*another spec"):
        second()


def test_a_cycle_is_refused():
    """The builders cannot make one; a program built by hand can."""
    program = run(
        A,
        "y = tg.relu(tg.linear(a, b, name='up'), name='h')",
        "return tg.linear(y, tg.weight('c', (3, 8), F), name='down')",
        declared=False,
    )
    up = program.calls[0]
    looped = dataclasses.replace(up, operands=(Operand("down"), up.operands[1]))
    with pytest.raises(tg.SpecError, match="wrong.py:6: cycle: 'up' reads 'down'"):
        tg.plan(dataclasses.replace(program, calls=(looped, *program.calls[1:])), "cpu:2")


# ---- sizes -------------------------------------------------------------------------------------------------


@tg.spec
def sized(M=4, K=6):
    return tg.linear(tg.input("x", (M, K), F), tg.weight("w", (8, K), F))


@pytest.mark.parametrize(
    ("arguments", "sizes", "words"),
    [
        ((), {"N": 3}, ["sized", "'N'", "M, K"]),
        ((1, 2, 3), {}, ["sized", "too many", "M, K"]),
        ((1,), {"M": 2}, ["sized", "multiple values", "'M'"]),
    ],
)
def test_wrong_parameters(arguments, sizes, words):
    with pytest.raises(tg.SpecError) as caught:
        sized(*arguments, **sizes)
    assert caught.value.where.startswith("tests") and "test_spec_failures.py:" in caught.value.where
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("size", [-1, 1.5, True, "8", None])
def test_wrong_sizes(size):
    with pytest.raises(tg.SpecError, match="'x'.*size"):
        sized(M=size)


@pytest.mark.parametrize("text", ["1.5", "abc", "true", "-3", "1e3", "nan"])
def test_sizes_from_the_command_line(text):
    with pytest.raises(tg.SpecError, match="'x'.*size"):
        sized(M=parse("M", text))


# ---- torch's words in a spec -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (torch.relu, ["torch's relu", "tg.relu"]),
        (lambda x: torch.nn.functional.softmax(x, dim=-1), ["torch's softmax", "tg.softmax"]),
        (lambda x: torch.logsumexp(x, -1), ["torch's logsumexp", "tg.logsumexp"]),
        (lambda x: torch.cumsum(x, -1), ["torch's cumsum", "no elements"]),
    ],
    ids=["relu", "softmax", "logsumexp", "unknown"],
)
def test_words_of_torch_are_told_with_ours(write, words):
    @tg.spec
    def wrong():
        return write(tg.input("x", (4, 4), F))

    with pytest.raises(tg.SpecError) as caught:
        wrong()
    assert all(word in str(caught.value) for word in words) and "test_spec_failures.py:" in caught.value.where


def test_a_spec_is_a_function():
    with pytest.raises(tg.SpecError, match="declares a function, given 3"):
        tg.spec(3)
