#include <tightwire/tightwire.hpp>

std::string other_spec();

// Two files that both include everything link into one program and mean the same.
int main() { return other_spec() == tightwire::Codec(tightwire::Int8{}).spec() ? 0 : 1; }
