#include <tightwire/header_only.hpp>
#include <tightwire/tightwire.hpp>

std::string other_spec() { return tightwire::Codec(tightwire::Int8{}).spec(); }
