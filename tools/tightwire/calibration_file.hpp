#pragma once
#include <string>

#include <tightwire/calibration.hpp>

namespace tightwire::tool {

/// Writes what was measured as JSON. Throws Error(invalid_argument) where the file cannot be written.
void write_calibration(const std::string& path, const Calibration& calibration, const std::string& transport);

/// Reads it again, without the trials. Throws Error(invalid_argument) that names the file and what is wrong in it.
Calibration read_calibration(const std::string& path);

std::string as_text(const Calibration& calibration);

}  // namespace tightwire::tool
