// For libraries beside libtightwire: what they fail with is told by tightwire_last_error, as everything else.
#include "handles.hpp"

namespace tightwire::c {

tightwire_status fail(Errc code, const char* text) noexcept {
  return tightwire_fail(static_cast<tightwire_status>(code), text);
}

}  // namespace tightwire::c
