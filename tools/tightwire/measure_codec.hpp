#pragma once
#include <array>
#include <string>
#include <string_view>

namespace tightwire::tool {

inline constexpr std::array<std::string_view, 4> kDistributionNames = {"gaussian", "laplace", "student_t3", "outliers"};

/// What a codec costs and loses on this machine.
struct CodecFigures {
  std::string spec;
  double bits_per_element = 0;   ///< on the wire, scales included
  std::array<double, 4> nmse{};  ///< normalised mean squared error, by kDistributionNames
  double encode_gb_per_s = 0;    ///< of fp32 input, with error feedback, one thread, from and to memory
  double decode_gb_per_s = 0;
  double cached_encode_gb_per_s = 0;  ///< the same in second-level cache
  double cached_decode_gb_per_s = 0;
};

/// Measures a codec by its specification; half a second. Throws Error(invalid_argument) for one that is not known.
CodecFigures measure_codec(const std::string& spec);

}  // namespace tightwire::tool
