#!/bin/sh
# build.sh INCLUDE_FOLDER PROGRAM COMPILER FLAGS...: compiles the two files here with the headers alone and runs the program,
# which leaves what it prints in PROGRAM.txt.
set -eu
include=$1 program=$2
shift 2
"$@" -std=c++20 -Wall -Wextra -Werror -I "$include" main.cpp other.cpp -pthread -o "$program"
"$program" | tee "$program.txt"
