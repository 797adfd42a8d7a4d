set -e
F="-std=c++20 -O1 -Wall -Wextra -Wconversion -Wshadow -Wno-restrict -ffp-contract=off -Iinclude -Itests -Itests/unit -Isrc -Itools/tightwire"
mkdir -p /tmp/h9o
for f in "$@"; do echo $f; g++ $F -c $f -o /tmp/h9o/$(basename $f .cpp).o 2>&1 | grep -E "error|warning" | head -20; done
