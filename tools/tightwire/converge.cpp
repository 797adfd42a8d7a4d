#include "converge.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "build_info.hpp"

namespace tightwire::tool {
namespace {

constexpr const char* kPython = "/usr/bin/python3";
constexpr const char* kTrainerVariable = "TIGHTWIRE_CONVERGENCE_TRAINER";
constexpr int kCannotStart = 125;

/// The first of these that is there, or the first of all.
std::filesystem::path first_there(const std::vector<std::filesystem::path>& candidates) {
  for (const std::filesystem::path& candidate : candidates)
    if (std::filesystem::exists(candidate)) return candidate;
  return candidates.front();
}

std::filesystem::path own_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

/// The suite without its parent package, which loads the library for trainers in Python: that may not be built, and is
/// not needed here. PYTHONPATH stays as it is, as trainers of the user inherit it.
constexpr const char* kRunSuite =
    "import runpy, sys, types; parent = types.ModuleType('tightwire'); parent.__path__ = [sys.argv.pop(1)]; "
    "sys.modules['tightwire'] = parent; runpy.run_module('tightwire.convergence', run_name='__main__', alter_sys=True)";

/// Whether Python can import a module; its complaint is not shown.
bool can_import(const std::string& module) {
  const std::string command = std::string(kPython) + " -c 'import " + module + "' 2>/dev/null";
  return std::system(command.c_str()) == 0;
}

int refuse(std::string_view why) {
  std::cerr << "tightwire converge: " << why << '\n';
  return kCannotStart;
}

/// Returns only where it cannot start.
int converge(const std::vector<std::string>& arguments) {
  if (access(kPython, X_OK) != 0) return refuse("/usr/bin/python3 is missing (Debian: python3)");
  const std::filesystem::path package = first_there({own_folder() / "../share/tightwire/python/tightwire",
                                                     std::filesystem::path(kSourceFolder) / "python/tightwire"});
  if (!std::filesystem::exists(package / "convergence"))
    return refuse("the Python package tightwire.convergence is in neither " + package.string() + " nor " +
                  kSourceFolder + "/python/tightwire");
  if (!can_import("numpy")) return refuse("numpy is missing for /usr/bin/python3 (Debian: python3-numpy)");
  setenv(kTrainerVariable, (own_folder() / "convergence_trainer").c_str(), 0);
  std::vector<std::string> command = {kPython, "-P", "-c", kRunSuite, package.string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> values;
  for (std::string& part : command) values.push_back(part.data());
  values.push_back(nullptr);
  std::cout << std::flush;
  execv(kPython, values.data());
  return refuse(std::string(kPython) + " cannot be started: " + std::strerror(errno));
}

}  // namespace

void add_converge(CLI::App& app, int& status) {
  CLI::App* command =
      app.add_subcommand("converge", "Prove that training still converges: codecs against exact, over seeds");
  command->prefix_command();
  command->set_help_flag();  // --help is the package's, which knows the options
  command->callback([command, &status] { status = converge(command->remaining()); });
}

}  // namespace tightwire::tool
