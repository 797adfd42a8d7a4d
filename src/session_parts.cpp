// What a Session is made of, compiled once.
#include <tightwire/core_session.hpp>

namespace tightwire {

TIGHTWIRE_SESSION_PARTS(template)

}  // namespace tightwire
