#include "codecs.hpp"

#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <tightwire/tightwire.hpp>

#include "measure_codec.hpp"

namespace tightwire::tool {
namespace {

/// All by themselves, and some behind a rotation.
std::vector<std::string> all_specs() {
  std::vector<std::string> specs;
  for (const BuiltinCodec& codec : builtin_codecs()) specs.emplace_back(codec.name);
  for (const char* rotated :
       {"hadamard:32+int4:block=32", "hadamard:4096+int4", "hadamard:4096+int2", "hadamard:4096+sign",
        "hadamard:4096+lloyd4", "hadamard:256+lloyd3.2", "hadamard:4096+lloyd3", "hadamard:256+lloyd2.7",
        "hadamard:4096+lloyd2", "hadamard:256+lloyd1.6", "hadamard:4096+lloyd1", "hadamard:4096+eden2",
        "hadamard:4096+eden1"})
    specs.emplace_back(rotated);
  return specs;
}

void print_head() {
  std::cout
      << "One thread, CPU level " << host::to_string(host::level())
      << ". NMSE: mean squared error over mean square, rounded to nearest, on a million elements each: Gaussian,\n"
         "Laplace, Student-t with 3 degrees of freedom, and Gaussian with one element in a thousand 100 times as "
         "large. GB/s: of fp32;\nencoding with error feedback; in memory (32 MiB) and in cache (64 KiB).\n\n"
      << std::left << std::setw(34) << "" << std::right << std::setw(9) << "bits per" << std::setw(36) << "NMSE"
      << std::setw(24) << "encode GB/s" << std::setw(16) << "decode GB/s" << '\n'
      << std::left << std::setw(34) << "codec" << std::right << std::setw(9) << "element" << std::setw(11) << "Gaussian"
      << std::setw(10) << "Laplace" << std::setw(12) << "Student-t" << std::setw(11) << "outliers" << std::setw(10)
      << "memory" << std::setw(8) << "cache" << std::setw(9) << "memory" << std::setw(8) << "cache" << '\n';
}
void print_row(const CodecFigures& figures) {
  std::cout << std::left << std::setw(34) << figures.spec << std::right << std::fixed << std::setprecision(3)
            << std::setw(9) << figures.bits_per_element << std::scientific << std::setprecision(1);
  for (std::size_t d = 0; d < figures.nmse.size(); ++d)
    std::cout << std::setw(d == 1 ? 10 : d == 2 ? 12 : 11) << figures.nmse[d];
  std::cout << std::fixed << std::setw(10) << figures.encode_gb_per_s << std::setw(8) << figures.cached_encode_gb_per_s
            << std::setw(9) << figures.decode_gb_per_s << std::setw(8) << figures.cached_decode_gb_per_s << std::endl;
}
nlohmann::ordered_json as_json(const CodecFigures& figures) {
  nlohmann::ordered_json json = {{"spec", figures.spec}, {"bits_per_element", figures.bits_per_element}};
  for (std::size_t d = 0; d < figures.nmse.size(); ++d)
    json["nmse"][std::string(kDistributionNames[d])] = figures.nmse[d];
  json["encode_gb_per_s"] = {{"memory", figures.encode_gb_per_s}, {"cache", figures.cached_encode_gb_per_s}};
  json["decode_gb_per_s"] = {{"memory", figures.decode_gb_per_s}, {"cache", figures.cached_decode_gb_per_s}};
  return json;
}

}  // namespace

void add_codecs(CLI::App& app, int& status) {
  CLI::App* codecs = app.add_subcommand("codecs", "Measure size, error and speed of codecs on this machine");
  const auto specs = std::make_shared<std::vector<std::string>>();
  const auto json = std::make_shared<bool>(false);
  codecs->add_option("spec", *specs, "Codecs to measure, such as int4:block=32 or hadamard:32+int4; all if none");
  codecs->add_flag("--json", *json, "As JSON");
  codecs->callback([specs, json, &status] {
    if (specs->empty()) *specs = all_specs();
    for (const std::string& spec : *specs)
      parse_codec(spec).coder(ElementType::f32);  // a mistake in the last is told before the first runs
    if (!*json) print_head();
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const std::string& spec : *specs) {
      const CodecFigures figures = measure_codec(spec);
      *json ? rows.push_back(as_json(figures)) : print_row(figures);
    }
    if (*json) std::cout << rows.dump(2) << '\n';
    status = std::cout ? 0 : 1;
  });
}

}  // namespace tightwire::tool
