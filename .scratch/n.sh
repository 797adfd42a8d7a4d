bench/network.sh 2 100 -- build/dev/bin/tightwire bench --from 64K --to 4M --factor 8 --codecs exact int8 --iterations 3
