#pragma once
#include <istream>
#include <string>
#include <vector>

#include <tightwire/policy.hpp>

namespace tightwire::tool {

/// The parameters of a model, from
///
///   name.safetensors   the header of the file (tensors of integers are no parameters and are left out)
///   JSON               {"layer.weight": [64, 3, 7, 7], ...}, or {"layer.weight": {"shape": [...], "dtype": "BF16"}}
///   text               a line per parameter: layer.weight 64x3x7x7 [fp32|bf16|fp16]; # begins a comment
///   text               what Session::description() gives
///
/// Throws Error(invalid_argument) that names the file, and line or parameter.
std::vector<Parameter> read_model(const std::string& path);

}  // namespace tightwire::tool
