"""A dense mixture of experts: every expert sees every row, and a row's gates weigh what they make of it."""

import tilegen as tg


@tg.spec
def moe_dense(M=64, H=1024, I=2048, experts=4, dtype="bfloat16"):
    x = tg.input("x", (M, H), dtype)
    gates = tg.softmax(tg.linear(x, tg.weight("router", (experts, H), dtype), name="scores"), name="gates")
    y = x
    for e in range(experts):
        up, down = tg.weight(f"up{e}", (I, H), dtype), tg.weight(f"down{e}", (H, I), dtype)
        h = tg.linear(tg.silu(tg.linear(x, up, name=f"u{e}"), name=f"h{e}"), down, name=f"d{e}")
        y = tg.add(tg.mul(h, gates[..., e : e + 1], name=f"weighed{e}"), y, name=f"y{e}")
    return y


if __name__ == "__main__":
    from tilegen.cli import main

    raise SystemExit(main(["run", __file__]))
