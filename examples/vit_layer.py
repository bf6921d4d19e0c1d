"""ViT-B/16 encoder layer: layer norm, attention over all tokens of an image, residual; layer norm, feed-
forward, residual."""

import tilegen as tg


@tg.spec
def vit_layer(B=4, S=200, H=768, heads=12, I=3072, dtype="bfloat16"):
    x = tg.input("x", (B, S, H), dtype)
    wqkv, bqkv = tg.weight("wqkv", (3 * H, H), dtype), tg.weight("bqkv", (3 * H,), dtype)
    wo, bo = tg.weight("wo", (H, H), dtype), tg.weight("bo", (H,), dtype)
    w1, b1 = tg.weight("w1", (I, H), dtype), tg.weight("b1", (I,), dtype)
    w2, b2 = tg.weight("w2", (H, I), dtype), tg.weight("b2", (H,), dtype)
    g1, c1, g2, c2 = (tg.weight(name, (H,), dtype) for name in ("g1", "c1", "g2", "c2"))

    n = tg.layer_norm(x, g1, c1, name="n1")
    q, k, v = tg.linear(n, wqkv, bqkv, name="qkv").chunk(3)
    r = tg.add(tg.linear(tg.attention(q, k, v, heads=heads, name="attn"), wo, bo, name="out"), x, name="r")
    h = tg.gelu(tg.linear(tg.layer_norm(r, g2, c2, name="n2"), w1, b1, name="up"), name="g")
    return tg.add(tg.linear(h, w2, b2, name="down"), r, name="y")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
