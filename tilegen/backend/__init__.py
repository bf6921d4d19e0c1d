"""torch.compile(model, backend="tilegen"): regions of a graph that pay are kernels of tilegen's, the rest is
Inductor's.

    model ─ Dynamo ─▶ compile_fx ─ joint graph ─▶ regions (search) ─▶ operators (region) ─▶ Inductor
"""
