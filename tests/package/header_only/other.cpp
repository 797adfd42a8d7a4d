#include <tightwire/header_only.hpp>

std::size_t size_of_session();
std::size_t size_of_session() { return sizeof(tightwire::Session); }
