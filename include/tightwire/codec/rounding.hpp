#pragma once
#include <cstdint>
#include <string_view>

namespace tightwire {

/// How a codec rounds to its codes.
enum class Rounding : std::uint8_t {
  automatic,   ///< nearest; stochastic up to 4 bits where there is no error feedback
  nearest,     ///< to the nearest, ties to even: least error, and what error feedback wants
  stochastic,  ///< up or down at random so that the mean is exact: what there should be without error feedback
};
constexpr std::string_view to_string(Rounding rounding) {
  return rounding == Rounding::nearest ? "nearest" : rounding == Rounding::stochastic ? "stochastic" : "automatic";
}

}  // namespace tightwire
