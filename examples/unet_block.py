"""A residual block of a diffusion U-Net: group norm, SiLU, convolution, twice; the time's embedding between
them."""

import tilegen as tg


@tg.spec
def unet_block(B=2, HW=32, C=320, N=640, T=1280, groups=32, dtype="bfloat16"):
    x, time = tg.input("x", (B, HW, HW, C), dtype), tg.input("time", (B, T), dtype)
    wt, bt = tg.weight("wt", (N, T), dtype), tg.weight("bt", (N,), dtype)
    g1, c1 = tg.weight("g1", (C,), dtype), tg.weight("c1", (C,), dtype)
    w1, b1 = tg.weight("w1", (N, 3, 3, C), dtype), tg.weight("b1", (N,), dtype)
    g2, c2 = tg.weight("g2", (N,), dtype), tg.weight("c2", (N,), dtype)
    w2, b2 = tg.weight("w2", (N, 3, 3, N), dtype), tg.weight("b2", (N,), dtype)
    ws, bs = tg.weight("ws", (N, 1, 1, C), dtype), tg.weight("bs", (N,), dtype)

    h = tg.silu(tg.group_norm(x, groups, g1, c1, name="n1"), name="s1")
    h = tg.conv2d(h, w1, b1, padding=1, name="conv1")
    h = tg.add(h, tg.linear(tg.silu(time, name="st"), wt, bt, name="when"), name="then")
    h = tg.silu(tg.group_norm(h, groups, g2, c2, name="n2"), name="s2")
    h = tg.conv2d(h, w2, b2, padding=1, name="conv2")
    return tg.add(h, tg.conv2d(x, ws, bs, name="skip"), name="y")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
