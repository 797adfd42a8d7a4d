#include <array>
#include <iomanip>
#include <sstream>
#include <string>

#include <tightwire/core_codecs.hpp>
#include <tightwire/error.hpp>
#include <tightwire/host/level.hpp>
#include <tightwire/version.hpp>

#include "connect.hpp"
#include "handles.hpp"

namespace tightwire::c {
namespace {

thread_local std::string last_error;

constexpr std::array kStatusNames = {"ok",          "invalid_argument", "mismatch", "timeout",
                                     "peer_lost",   "transport",        "corrupt",  "nonfinite",
                                     "unsupported", "no_memory",        "device",   "internal"};
static_assert(kStatusNames.size() == static_cast<std::size_t>(Errc::internal) + 1);
static_assert(TIGHTWIRE_TIMEOUT == static_cast<int>(Errc::timeout));
static_assert(TIGHTWIRE_NONFINITE == static_cast<int>(Errc::nonfinite));
static_assert(TIGHTWIRE_INTERNAL == static_cast<int>(Errc::internal));

std::string info() {
  std::ostringstream text;
  text << "tightwire " << kVersion << ", wire version " << kWireVersion << ", C interface " << TIGHTWIRE_ABI_VERSION
       << "\nCPU level   " << host::to_string(host::level()) << " (this CPU has "
       << host::to_string(host::supported_level()) << ")\ntransports  in-process; " << connections()
       << "\ncodecs      exact";
  for (const BuiltinCodec& codec : builtin_codecs()) text << ", " << codec.name;
  text << ", topk, randomk, powersgd\n";
  return text.str();
}

}  // namespace

tightwire_status fail(Errc code, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();  // no memory even for the text; the status still tells
  }
  return static_cast<tightwire_status>(code);
}

}  // namespace tightwire::c

using tightwire::Errc;
using tightwire::Error;
using tightwire::c::guarded;

const char* tightwire_version() { return tightwire::kVersion; }

uint32_t tightwire_abi_version() { return TIGHTWIRE_ABI_VERSION; }

tightwire_status tightwire_require_abi(uint32_t abi_version) {
  return guarded([&] {
    if (abi_version != TIGHTWIRE_ABI_VERSION)
      throw Error(Errc::unsupported, "this program was compiled for version " + std::to_string(abi_version) +
                                         " of tightwire's C interface; the library loaded (" + tightwire::kVersion +
                                         ") has version " + std::to_string(TIGHTWIRE_ABI_VERSION));
  });
}

const char* tightwire_last_error() { return tightwire::c::last_error.c_str(); }

tightwire_status tightwire_fail(tightwire_status status, const char* text) {
  return tightwire::c::fail(static_cast<Errc>(status), text == nullptr ? "" : text);
}

const char* tightwire_status_name(int status) {
  const auto& names = tightwire::c::kStatusNames;
  return status >= 0 && static_cast<std::size_t>(status) < names.size() ? names[static_cast<std::size_t>(status)]
                                                                        : "unknown";
}

const char* tightwire_info() {
  thread_local std::string text;
  return guarded([&] { text = tightwire::c::info(); }) == TIGHTWIRE_OK ? text.c_str() : tightwire_last_error();
}
