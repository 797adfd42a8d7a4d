ninja -C build/dev -j2 "$@" 2>&1 | grep -E "error|warning: |FAILED|^\[[0-9]+/[0-9]+\] Linking" | head -60
