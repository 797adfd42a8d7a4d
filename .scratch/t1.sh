T=build/dev/bin/tightwire
time $T bench -n 2 --from 8 --to 16M --factor 64 --codecs exact bf16 int8 int4 topk:ratio=0.01 powersgd:rank=4 auto --check --iterations 5
$T bench -n 2 --from 64K --to 64K --codecs int8 --check --plant bits --iterations 1; echo $?
$T bench -n 2 --from 64K --to 64K --codecs int8 --check --plant error --iterations 1; echo $?
$T bench -n 2 --from 64K --to 64K --codecs int8 --check --plant bytes --iterations 1; echo $?
time $T bench -n 2 --calibrate /tmp/h9_c.json --codecs exact bf16 int8 int4 topk:ratio=0.01 powersgd:rank=4 --iterations 5
$T plan --bytes 100M --calibration /tmp/h9_c.json --ranks 8,1024 --per-node 1,8 --across-gbit 10
mpirun --allow-run-as-root -np 2 $T bench --from 1M --to 1M --csv --iterations 3
