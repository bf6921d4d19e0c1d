import faulthandler, sys, time
faulthandler.dump_traceback_later(100, exit=True)
sys.path.insert(0, ".")
import torch
from tests.gpu.plans import PLANS
from tests.gpu.test_skeleton import Skeleton
for name in sorted(PLANS):
    t=time.time(); plan = PLANS[name](); t1=time.time()
    k = Skeleton(plan); t2=time.time()
    for r in range(3):
        k.launch(patience_ns=100_000_000); torch.cuda.synchronize()
        if k.hang[0] >= 0: break
    t3=time.time()
    table=plan.wait_table
    print(name, "plan %.1f build %.1f run %.3f" % (t1-t, t2-t1, t3-t2), "hang", k.hang.tolist(), "runs", int((k.runs>0).sum()), "/", plan.order.count, "workers", plan.machine.sms//plan.gang, "waits", len(table.rank), flush=True)
    if k.hang[0] >= 0:
        h=k.hang.tolist(); print("  missing ranks", (k.runs==0).nonzero().flatten()[:20].tolist())
    t4=time.time()
    for r in range(50): k.launch()
    torch.cuda.synchronize(); print("  50 launches %.3f s"%(time.time()-t4), flush=True)
