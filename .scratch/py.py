import sys, os
sys.path.insert(0,"python")
os.environ["TIGHTWIRE_LIBRARY"]="build/dev/bindings/c/libtightwire.so"
import numpy as np, tightwire
c=tightwire.Communicator.in_process(1)[0] if hasattr(tightwire.Communicator,"in_process") else tightwire.connect()
s=tightwire.Session(c,"auto telemetry=/tmp/h9_tel")
s.add("w",(64,64)); s.seal()
g=np.ones((64,64),np.float32)
for _ in range(3):
    s.all_reduce([g]); s.commit()
print(s.description if not callable(s.description) else s.description())
