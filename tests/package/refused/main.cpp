#include <tightwire/header_only.hpp>

// As tightwire::Int8, but its values are of the wrong type.
struct Wrong : tightwire::Int8 {
  static double value(int code, Scale scale) { return static_cast<double>(code) * static_cast<double>(scale.step); }
};

int main() { const tightwire::HostCoder<Wrong> coder; }
