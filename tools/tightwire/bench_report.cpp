#include <cmath>
#include <iomanip>
#include <sstream>

#include <nlohmann/json.hpp>

#include "bench_rows.hpp"

namespace tightwire::tool {

std::string shared_cores_text(int ranks_per_core) {
  if (ranks_per_core < 2) return {};
  return "# " + std::to_string(ranks_per_core) +
         " ranks share a core: times are those of ranks that wait for each other to compute\n";
}

std::string table_head(const Transport& transport, const BenchOptions& options, int ranks_per_core) {
  std::ostringstream text;
  text << "# " << transport.size() << " ranks, " << transport.describe() << "; mean of fp32, in place, error feedback "
       << (options.feedback ? "on" : "off") << "; medians of " << options.iterations << ", quartiles in brackets\n"
       << shared_cores_text(ranks_per_core) << "# definitions: bench/METHOD.md\n"
       << std::left << std::setw(11) << "bytes" << std::setw(11) << "elements" << std::setw(26) << "codec" << std::right
       << std::setw(12) << "time us" << std::setw(24) << "" << std::setw(10) << "algbw" << std::setw(10) << "busbw"
       << std::setw(12) << "wire bytes" << std::setw(8) << "ratio" << std::setw(10) << "vs exact" << std::setw(11)
       << "error" << '\n'
       << std::setw(94) << "GB/s" << std::setw(10) << "GB/s" << '\n';
  return text.str();
}

std::string as_table(const BenchRow& row) {
  std::ostringstream text, spread;
  spread << std::fixed << std::setprecision(1) << "[" << 1e6 * row.low_seconds << " .. " << 1e6 * row.high_seconds
         << "]";
  text << std::left << std::setw(11) << row.bytes << std::setw(11) << row.elements << std::setw(26) << row.codec
       << std::right << std::fixed << std::setprecision(1) << std::setw(12) << 1e6 * row.seconds << std::setw(24)
       << spread.str() << std::setprecision(3) << std::setw(10) << row.algorithm_gb_per_s << std::setw(10)
       << row.bus_gb_per_s << std::setw(12) << row.wire_bytes << std::setprecision(2) << std::setw(8) << row.ratio
       << std::setw(10) << row.speedup << std::scientific << std::setw(11) << row.error << '\n';
  return text.str();
}

std::string csv_head() {
  return "bytes,elements,codec,seconds,low_seconds,high_seconds,algbw_gb_per_s,busbw_gb_per_s,wire_bytes,ratio,"
         "speedup_over_exact,error,same_bits\n";
}

std::string as_csv(const BenchRow& row) {
  std::ostringstream text;
  text << std::setprecision(9) << row.bytes << ',' << row.elements << ",\"" << row.codec << "\"," << row.seconds << ','
       << row.low_seconds << ',' << row.high_seconds << ',' << row.algorithm_gb_per_s << ',' << row.bus_gb_per_s << ','
       << row.wire_bytes << ',' << row.ratio << ',' << row.speedup << ',' << row.error << ',' << (row.same_bits ? 1 : 0)
       << '\n';
  return text.str();
}

std::string as_json(const BenchRow& row) {
  nlohmann::ordered_json json = {{"bytes", row.bytes},
                                 {"elements", row.elements},
                                 {"codec", row.codec},
                                 {"seconds", row.seconds},
                                 {"low_seconds", row.low_seconds},
                                 {"high_seconds", row.high_seconds},
                                 {"algbw_gb_per_s", row.algorithm_gb_per_s},
                                 {"busbw_gb_per_s", row.bus_gb_per_s},
                                 {"wire_bytes", row.wire_bytes},
                                 {"messages", row.messages},
                                 {"frame_bytes", row.frame_bytes},
                                 {"ratio", row.ratio},
                                 {"speedup_over_exact", row.speedup},
                                 {"error", row.error},
                                 {"error_bound", row.error_bound},
                                 {"same_bits", row.same_bits},
                                 {"ranks_per_core", row.ranks_per_core}};
  if (row.planned_bytes != 0) json["planned_bytes"] = row.planned_bytes;
  return json.dump() + "\n";
}

}  // namespace tightwire::tool
