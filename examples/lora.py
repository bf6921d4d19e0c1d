"""A linear and its low-rank update: y = x wᵀ + (x aᵀ) bᵀ."""

import tilegen as tg


@tg.spec
def lora(M=278, H=1024, R=16, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    a, b, w = tg.weight("a", (R, H), dtype), tg.weight("b", (H, R), dtype), tg.weight("w", (H, H), dtype)
    high = tg.linear(tg.linear(x, a, name="low"), b, name="high")
    return tg.add(high, tg.linear(x, w, name="base"), name="y")


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
