#pragma once
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace tightwire::testing {

struct ToolOutcome {
  int status = -1;
  std::string output;  // standard output and standard error
};

/// Runs `tightwire <arguments>` by a shell, for no longer than 100 s.
inline ToolOutcome tool(const std::string& arguments, const std::string& environment = "") {
  const std::string command = environment + " timeout 100 '" TIGHTWIRE_TOOL "' " + arguments + " 2>&1 </dev/null";
  ToolOutcome outcome;
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
  return outcome;
}

}  // namespace tightwire::testing
